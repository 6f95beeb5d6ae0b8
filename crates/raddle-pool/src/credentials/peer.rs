//! What a worker that is called has to be named.

use std::{fmt, str::FromStr};

use rustls::pki_types::{CertificateDer, ServerName};
use serde::{Deserialize, Serialize};
use webpki::EndEntityCert;

use super::{
    identity::Identity,
    pattern::{Pattern, PatternError},
};

/// A name that a worker's certificate may have: `worker.internal`, `*.internal`, `10.0.0.7`, `spiffe://prod/render` or `spiffe://prod/*`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PeerName(Kind);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Host(ServerName<'static>),
    Hosts(Pattern),
    Uri(Pattern),
}

/// No worker can be named so.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no worker can be named '{name}': {reason}")]
pub struct PeerNameError {
    name: String,
    reason: String,
}

/// A worker has shown the certificate of somebody else.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is that of {shown}, and not of {expected}")]
pub struct WrongName {
    /// Who was to be reached.
    pub expected: String,
    /// Who was.
    pub shown: String,
}

/// Whether the certificate is of one of these, or without any of them, of this host.
pub(super) fn check(
    certificate: &CertificateDer<'_>,
    host: &ServerName<'_>,
    expected: &[PeerName],
) -> Result<(), rustls::Error> {
    let bad = |_| rustls::Error::InvalidCertificate(rustls::CertificateError::BadEncoding);
    let shown = EndEntityCert::try_from(certificate).map_err(bad)?;
    let is_of = |host: &ServerName<'_>| shown.verify_is_valid_for_subject_name(host).is_ok();
    let is_meant = if expected.is_empty() {
        is_of(host)
    } else {
        expected.iter().any(|PeerName(kind)| match kind {
            Kind::Host(host) => is_of(host),
            // Whoever has a name with a star in it may serve under many, and is none of them.
            Kind::Hosts(pattern) => {
                let is_meant = |name: &str| pattern.matches(&name.trim_end_matches('.').to_ascii_lowercase());
                shown.valid_dns_names().any(|name| !name.contains('*') && is_meant(name))
            }
            Kind::Uri(pattern) => shown.valid_uri_names().any(|uri| !uri.contains('*') && pattern.matches(uri)),
        })
    };
    if is_meant {
        return Ok(());
    }
    let names: Vec<_> = expected.iter().map(ToString::to_string).collect();
    let expected = if names.is_empty() { host.to_str().into_owned() } else { names.join(" or ") };
    let shown = Identity::of(certificate).map(|shown| shown.to_string()).unwrap_or_default();
    let wrong = rustls::OtherError(std::sync::Arc::new(WrongName { expected, shown }));
    Err(rustls::Error::InvalidCertificate(rustls::CertificateError::Other(wrong)))
}

impl FromStr for PeerName {
    type Err = PeerNameError;

    fn from_str(name: &str) -> Result<Self, PeerNameError> {
        let wrong = |reason: String| PeerNameError { name: name.to_owned(), reason };
        if name.contains("://") {
            let pattern = Pattern::uri(name).map_err(|error: PatternError| wrong(error.to_string()))?;
            return Ok(Self(Kind::Uri(pattern)));
        }
        if name.contains('*') {
            let pattern = Pattern::host(name).map_err(|error: PatternError| wrong(error.to_string()))?;
            return Ok(Self(Kind::Hosts(pattern)));
        }
        let host = ServerName::try_from(name.to_owned());
        let host = host.map_err(|_| wrong("give a host name, an address or a URI, without a port".into()))?;
        Ok(Self(Kind::Host(host)))
    }
}

impl fmt::Display for PeerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Host(host) => f.write_str(&host.to_str()),
            Kind::Hosts(pattern) | Kind::Uri(pattern) => pattern.fmt(f),
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
