//! The identity in a peer's certificate: its subject alternative names.
//!
//! The certificate was verified in the handshake; this only reads it. The subject's common name is
//! ignored, because CAs differ in what they check of it.

use std::fmt;

use rustls::pki_types::CertificateDer;
use webpki::EndEntityCert;

/// The names that a CA has certified. May be empty.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    names: Vec<CertificateName>,
}

/// A certified name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CertificateName {
    /// A host name, in lower case.
    Dns(String),
    /// A URI, such as a SPIFFE id.
    Uri(String),
}

/// The certificate is malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the peer's certificate is malformed")]
pub struct IdentityError;

impl Identity {
    /// The identity of a connection's peer, from rustls' `peer_certificates()`. `None` without a
    /// certificate.
    pub fn from_peer_chain(
        chain: Option<&[CertificateDer<'_>]>,
    ) -> Result<Option<Self>, IdentityError> {
        chain
            .and_then(<[_]>::first)
            .map(Self::from_certificate)
            .transpose()
    }

    /// The identity in this certificate.
    pub fn from_certificate(certificate: &CertificateDer<'_>) -> Result<Self, IdentityError> {
        let certificate = EndEntityCert::try_from(certificate).map_err(|_| IdentityError)?;
        // A wildcard name covers many hosts, and identifies none of them.
        let hosts = certificate
            .valid_dns_names()
            .filter(|name| !name.contains('*'));
        let hosts =
            hosts.map(|name| CertificateName::Dns(name.trim_end_matches('.').to_ascii_lowercase()));
        // URIs are logged, and compared byte by byte, so only printable ASCII is accepted.
        let uris = certificate
            .valid_uri_names()
            .filter(|name| name.bytes().all(|byte| byte.is_ascii_graphic()));
        let uris = uris
            .filter(|name| !name.contains('*'))
            .map(|name| CertificateName::Uri(name.to_owned()));
        Ok(Self {
            names: hosts.chain(uris).collect(),
        })
    }

    /// The certified names.
    pub fn names(&self) -> &[CertificateName] {
        &self.names
    }
}

impl FromIterator<CertificateName> for Identity {
    fn from_iter<T: IntoIterator<Item = CertificateName>>(names: T) -> Self {
        Self {
            names: names.into_iter().collect(),
        }
    }
}

impl fmt::Display for CertificateName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dns(name) | Self::Uri(name) => f.write_str(name),
        }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.names.is_empty() {
            return f.write_str("a peer without a name");
        }
        for (at, name) in self.names.iter().enumerate() {
            write!(f, "{}{name}", if at == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}
