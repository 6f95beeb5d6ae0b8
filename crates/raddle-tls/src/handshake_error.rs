//! Classifies failed TLS handshakes, for counters, logs and decisions.
//!
//! In TLS 1.3 a caller's handshake is complete before the worker has verified the caller's
//! certificate. A refusal arrives with the first read, as an alert; `HandshakeError::from_io`
//! classifies that error too.

use std::io;

use rustls::{AlertDescription, CertificateError, Error, PeerIncompatible};

use super::PeerNameMismatch;

/// Why a handshake failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HandshakeError {
    /// We refused the peer.
    Ours(HandshakeErrorKind),
    /// The peer refused us; the alert may be less specific.
    Theirs(HandshakeErrorKind),
}

/// The kind of failure.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HandshakeErrorKind {
    /// No certificate was presented where one is required.
    #[error("no certificate was presented")]
    NoCertificate,
    /// The issuer is not trusted.
    #[error("the certificate is self-signed, or its CA is not trusted")]
    UnknownIssuer,
    /// The certificate has expired, or is not valid yet.
    #[error("the certificate has expired, or is not valid yet")]
    Expired,
    /// The certificate is for another name.
    #[error("the certificate has the wrong name: {0}")]
    WrongName(PeerNameMismatch),
    /// The certificate lacks the required usage.
    #[error("the certificate lacks a usage: it needs serverAuth and clientAuth")]
    WrongPurpose,
    /// The certificate is invalid in another way, or the peer did not say how.
    #[error("the certificate is invalid")]
    BadCertificate,
    /// The peer does not have the key of its certificate.
    #[error("the peer does not have the key of its certificate")]
    NoKey,
    /// The peer does not use TLS.
    #[error("not TLS: one side sends plain text")]
    NotTls,
    /// There is no common TLS version or cipher suite.
    #[error("no common TLS version: 1.3 is required")]
    Version,
    /// There is no common application protocol (ALPN).
    #[error("no common application protocol")]
    Protocol,
    /// Any other failure.
    #[error("the handshake failed")]
    Other,
}

impl HandshakeError {
    /// Classifies an error of a TLS stream. `None` if TLS was not the cause: the connection was
    /// lost.
    pub fn from_io(error: &io::Error) -> Option<Self> {
        error
            .get_ref()?
            .downcast_ref::<Error>()
            .map(Self::from_rustls)
    }

    /// Classifies an error of rustls.
    pub fn from_rustls(error: &Error) -> Self {
        match error {
            Error::AlertReceived(alert) => Self::Theirs(HandshakeErrorKind::from_alert(*alert)),
            error => Self::Ours(HandshakeErrorKind::from_rustls(error)),
        }
    }

    /// The kind of failure.
    pub fn reason(&self) -> &HandshakeErrorKind {
        match self {
            Self::Ours(reason) | Self::Theirs(reason) => reason,
        }
    }
}

impl HandshakeErrorKind {
    /// The metric label. Exhaustive.
    pub fn label(&self) -> &'static str {
        match self {
            Self::NoCertificate => "no_certificate",
            Self::UnknownIssuer => "unknown_issuer",
            Self::Expired => "expired",
            Self::WrongName(_) => "wrong_name",
            Self::WrongPurpose => "wrong_purpose",
            Self::BadCertificate => "bad_certificate",
            Self::NoKey => "no_key",
            Self::NotTls => "not_tls",
            Self::Version => "version",
            Self::Protocol => "protocol",
            Self::Other => "other",
        }
    }

    fn from_rustls(error: &Error) -> Self {
        match error {
            Error::NoCertificatesPresented => Self::NoCertificate,
            Error::InvalidCertificate(error) => Self::from_certificate_error(error),
            Error::InvalidMessage(_)
            | Error::InappropriateMessage { .. }
            | Error::PeerSentOversizedRecord => Self::NotTls,
            Error::NoApplicationProtocol => Self::Protocol,
            Error::PeerIncompatible(
                PeerIncompatible::NoCertificateRequestSignatureSchemesInCommon,
            ) => Self::BadCertificate,
            Error::PeerIncompatible(_) => Self::Version,
            _ => Self::Other,
        }
    }

    fn from_certificate_error(error: &CertificateError) -> Self {
        use CertificateError as E;
        match error {
            E::UnknownIssuer => Self::UnknownIssuer,
            E::Expired
            | E::ExpiredContext { .. }
            | E::NotValidYet
            | E::NotValidYetContext { .. } => Self::Expired,
            E::InvalidPurpose | E::InvalidPurposeContext { .. } => Self::WrongPurpose,
            E::BadSignature => Self::NoKey,
            E::Other(other) => match other.0.downcast_ref() {
                Some(wrong) => Self::WrongName(PeerNameMismatch::clone(wrong)),
                None => Self::BadCertificate,
            },
            _ => Self::BadCertificate,
        }
    }

    /// Classifies an alert.
    fn from_alert(alert: AlertDescription) -> Self {
        use AlertDescription as A;
        match alert {
            A::CertificateRequired | A::NoCertificate => Self::NoCertificate,
            A::UnknownCA => Self::UnknownIssuer,
            A::CertificateExpired => Self::Expired,
            A::UnsupportedCertificate => Self::WrongPurpose,
            A::BadCertificate | A::CertificateUnknown | A::CertificateRevoked | A::AccessDenied => {
                Self::BadCertificate
            }
            A::DecryptError => Self::NoKey,
            A::ProtocolVersion | A::HandshakeFailure | A::InsufficientSecurity => Self::Version,
            A::NoApplicationProtocol => Self::Protocol,
            A::DecodeError | A::UnexpectedMessage | A::RecordOverflow => Self::NotTls,
            _ => Self::Other,
        }
    }
}

/// Corrects the error of a chain: a CA with the name of a trusted one and another key fails with
/// `BadSignature`, which would look as if the peer lacked the key of its certificate. It is an
/// unknown issuer.
pub(super) fn correct_chain_error(error: Error) -> Error {
    match error {
        Error::InvalidCertificate(CertificateError::BadSignature) => {
            CertificateError::UnknownIssuer.into()
        }
        error => error,
    }
}

impl std::fmt::Display for HandshakeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Ours(reason) => write!(f, "{reason}"),
            Self::Theirs(reason) => write!(f, "refused by the peer: {reason}"),
        }
    }
}

impl std::error::Error for HandshakeError {}
