//! The names that a worker's certificate may have, and their check.

use std::{fmt, str::FromStr};

use rustls::pki_types::{CertificateDer, ServerName};
use serde::{Deserialize, Serialize};
use webpki::EndEntityCert;

use super::{identity::Identity, pattern::NamePattern};

/// A name that a worker's certificate may have: `worker.internal`, `*.internal`, `10.0.0.7`,
/// `spiffe://prod/render` or `spiffe://prod/*`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PeerName(PeerNameKind);

#[derive(Clone, Debug, PartialEq, Eq)]
enum PeerNameKind {
    Host(ServerName<'static>),
    Named(NamePattern),
}

/// The name is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid worker name '{name}': {reason}")]
pub struct PeerNameError {
    name: String,
    reason: String,
}

/// The worker's certificate has none of the expected names.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is for {shown}, expected {expected}")]
pub struct PeerNameMismatch {
    /// The expected names.
    pub expected: String,
    /// The names in the certificate.
    pub shown: String,
}

/// Checks that the certificate has one of the expected names, or, if there are none, the name of
/// the host.
pub(super) fn check_peer_name(
    certificate: &CertificateDer<'_>,
    host: &ServerName<'_>,
    expected: &[PeerName],
) -> Result<(), rustls::Error> {
    let bad = || rustls::Error::InvalidCertificate(rustls::CertificateError::BadEncoding);
    let (shown, certificate) = (
        Identity::from_certificate(certificate),
        EndEntityCert::try_from(certificate),
    );
    let (shown, certificate) = (shown.map_err(|_| bad())?, certificate.map_err(|_| bad())?);
    let is_of = |host: &ServerName<'_>| certificate.verify_is_valid_for_subject_name(host).is_ok();
    let is_meant = if expected.is_empty() {
        is_of(host)
    } else {
        expected.iter().any(|PeerName(kind)| match kind {
            PeerNameKind::Host(host) => is_of(host),
            PeerNameKind::Named(pattern) => pattern.matches(&shown),
        })
    };
    if is_meant {
        return Ok(());
    }
    let names: Vec<_> = expected.iter().map(ToString::to_string).collect();
    let expected = if names.is_empty() {
        host.to_str().into_owned()
    } else {
        names.join(" or ")
    };
    let wrong = rustls::OtherError(std::sync::Arc::new(PeerNameMismatch {
        expected,
        shown: shown.to_string(),
    }));
    Err(rustls::Error::InvalidCertificate(
        rustls::CertificateError::Other(wrong),
    ))
}

impl FromStr for PeerName {
    type Err = PeerNameError;

    fn from_str(name: &str) -> Result<Self, PeerNameError> {
        let wrong = |reason: String| PeerNameError {
            name: name.to_owned(),
            reason,
        };
        if name.contains("://") || name.contains('*') {
            let pattern = NamePattern::new(name).map_err(|error| wrong(error.to_string()))?;
            return Ok(Self(PeerNameKind::Named(pattern)));
        }
        let host = ServerName::try_from(name.to_owned());
        let host = host
            .map_err(|_| wrong("give a host name, an address or a URI, without a port".into()))?;
        Ok(Self(PeerNameKind::Host(host)))
    }
}

impl fmt::Display for PeerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            PeerNameKind::Host(host) => f.write_str(&host.to_str()),
            PeerNameKind::Named(pattern) => pattern.fmt(f),
        }
    }
}

impl TryFrom<String> for PeerName {
    type Error = PeerNameError;

    fn try_from(name: String) -> Result<Self, PeerNameError> {
        name.parse()
    }
}

impl From<PeerName> for String {
    fn from(name: PeerName) -> Self {
        name.to_string()
    }
}
