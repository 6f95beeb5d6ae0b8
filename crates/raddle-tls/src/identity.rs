//! What the certificate of a caller says of him.
//!
//! Of a certificate that was verified in a handshake; here it is only read. What counts are the names in the extension that is made for names.
//! The subject's common name is not looked at: anything may stand there, and what CAs check of it differs.

use std::fmt;

use rustls::pki_types::CertificateDer;
use webpki::EndEntityCert;

/// The names that a CA has vouched for. There may be none.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    names: Vec<CertificateName>,
}

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CertificateName {
    /// A host, in small letters.
    Dns(String),
    /// A URI, as SPIFFE ids are.
    Uri(String),
}

/// No names can be read from what was shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the peer's certificate cannot be read")]
pub struct IdentityError;

impl Identity {
    /// Whom a connection is with, by what rustls has of it: `connection.peer_certificates()`. None, if there was no certificate.
    pub fn of_peer(chain: Option<&[CertificateDer<'_>]>) -> Result<Option<Self>, IdentityError> {
        chain.and_then(<[_]>::first).map(Self::of).transpose()
    }

    /// Whom this certificate is of.
    pub fn of(certificate: &CertificateDer<'_>) -> Result<Self, IdentityError> {
        let certificate = EndEntityCert::try_from(certificate).map_err(|_| IdentityError)?;
        // Whoever has a name with a star in it may serve under many, and is none of them.
        let hosts = certificate
            .valid_dns_names()
            .filter(|name| !name.contains('*'));
        let hosts =
            hosts.map(|name| CertificateName::Dns(name.trim_end_matches('.').to_ascii_lowercase()));
        // They end up in logs, and are compared byte by byte.
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

    /// Its names.
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
            return f.write_str("nobody by name");
        }
        for (at, name) in self.names.iter().enumerate() {
            write!(f, "{}{name}", if at == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}
