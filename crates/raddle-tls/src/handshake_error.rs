//! Why a handshake came to nothing, for those who count, log and decide.
//!
//! In TLS 1.3 a caller has finished before the worker has looked at his certificate. He hears that it was refused in the first thing he reads, as an
//! alert: such an error is asked about in the same way.

use std::io;

use rustls::{AlertDescription, CertificateError, Error, PeerIncompatible};

use super::PeerNameMismatch;

/// Why a handshake came to nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HandshakeError {
    /// We have refused the peer.
    Ours(HandshakeErrorKind),
    /// The peer has refused us, as far as it has said why.
    Theirs(HandshakeErrorKind),
}

/// What is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HandshakeErrorKind {
    /// No certificate was shown where one is asked for.
    #[error("no certificate was shown")]
    NoCertificate,
    /// It comes from nobody who is trusted.
    #[error("the certificate was issued by no CA that is trusted, or by itself")]
    UnknownIssuer,
    /// Its time is over, or has not come.
    #[error("the certificate has expired, or is not valid yet")]
    Expired,
    /// It is that of somebody else.
    #[error("the certificate is not the right one: {0}")]
    WrongName(PeerNameMismatch),
    /// It is for something else.
    #[error(
        "the certificate was not issued for this: it needs the usages serverAuth and clientAuth"
    )]
    WrongPurpose,
    /// It is wrong in another way, of which the peer does not say more.
    #[error("the certificate cannot be accepted")]
    BadCertificate,
    /// It was shown by somebody who does not have its key.
    #[error("the certificate was shown without its key")]
    NoKey,
    /// What was sent is no TLS.
    #[error("what came is no TLS: one side speaks in plain")]
    NotTls,
    /// There is no version of TLS, or no cipher, that both have.
    #[error("there is no common version of TLS: 1.3 is needed")]
    Version,
    /// There is no protocol that both speak.
    #[error("there is no common protocol")]
    Protocol,
    /// Anything else.
    #[error("the handshake failed")]
    Other,
}

impl HandshakeError {
    /// What an error of a TLS stream comes to. None, if it is not one of TLS: then the connection was lost.
    pub fn of(error: &io::Error) -> Option<Self> {
        error.get_ref()?.downcast_ref::<Error>().map(Self::of_tls)
    }

    /// What an error of rustls comes to.
    pub fn of_tls(error: &Error) -> Self {
        match error {
            Error::AlertReceived(alert) => Self::Theirs(HandshakeErrorKind::of_alert(*alert)),
            error => Self::Ours(HandshakeErrorKind::of(error)),
        }
    }

    /// Why.
    pub fn reason(&self) -> &HandshakeErrorKind {
        match self {
            Self::Ours(reason) | Self::Theirs(reason) => reason,
        }
    }
}

impl HandshakeErrorKind {
    /// One word, for metrics. There are no others than these.
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

    fn of(error: &Error) -> Self {
        match error {
            Error::NoCertificatesPresented => Self::NoCertificate,
            Error::InvalidCertificate(error) => Self::of_certificate(error),
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

    fn of_certificate(error: &CertificateError) -> Self {
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

    /// As much as an alert says.
    fn of_alert(alert: AlertDescription) -> Self {
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

/// What is wrong with a chain. A CA that is called as one that is trusted, and has another key, is as unknown as any other; without this it would look as
/// if the peer did not have the key of his certificate.
pub(super) fn of_chain(error: Error) -> Error {
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
            Self::Ours(reason) => write!(f, "the peer was refused: {reason}"),
            Self::Theirs(reason) => write!(f, "the peer has refused us: {reason}"),
        }
    }
}

impl std::error::Error for HandshakeError {}
