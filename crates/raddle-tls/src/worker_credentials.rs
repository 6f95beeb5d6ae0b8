//! `WorkerCredentials`: credentials for both ends of a connection.

use std::{fmt, path::PathBuf, sync::Arc};

use rustls::{ClientConfig, ServerConfig, pki_types::ServerName};

use super::{
    CredentialSource, CredentialsError, PemSource, client,
    reload::{self, CurrentCredentials},
    server,
};

/// A CA, a certificate and its key, for both ends of a connection. Only the contents of their files
/// may change; clones share the loaded set.
///
/// | | `mutual` | the worker is verified | the caller is verified |
/// | --- | --- | --- | --- |
/// | mutual TLS, the default | true | yes | yes |
/// | one-way TLS | false | yes | no |
#[derive(Clone)]
pub struct WorkerCredentials(Arc<CurrentCredentials>);

impl WorkerCredentials {
    /// For mutual TLS, from PEM files, which are read again when they change.
    pub fn from_files(
        ca: impl Into<PathBuf>,
        certificate: impl Into<PathBuf>,
        key: impl Into<PathBuf>,
    ) -> Result<Self, CredentialsError> {
        CredentialSource::new(PemSource::file(ca))
            .identity(PemSource::file(certificate), PemSource::file(key))
            .load()
    }

    /// For mutual TLS, from PEM.
    pub fn from_pem(
        ca: impl AsRef<[u8]>,
        certificate: impl AsRef<[u8]>,
        key: impl AsRef<[u8]>,
    ) -> Result<Self, CredentialsError> {
        CredentialSource::new(PemSource::bytes(ca))
            .identity(PemSource::bytes(certificate), PemSource::bytes(key))
            .load()
    }

    pub(super) fn load(source: CredentialSource) -> Result<Self, CredentialsError> {
        if source.mutual && source.identity.is_none() {
            return Err(CredentialsError::NoIdentity(
                "for mutual TLS, on both sides",
            ));
        }
        let current = CurrentCredentials::new(source)?;
        reload::warn_if_refused(&current.current());
        Ok(Self(Arc::new(current)))
    }

    /// What the credentials were loaded from, for a child process.
    pub fn source(&self) -> &CredentialSource {
        self.0.source()
    }

    /// Whether callers must present a certificate too.
    pub fn is_mutual(&self) -> bool {
        self.source().mutual
    }

    /// Whether workers must have particular names, instead of those of their hosts.
    pub fn expects_peer_names(&self) -> bool {
        !self.source().expected.is_empty()
    }

    /// The configuration of a worker. Of these protocols, the first that the caller offers is
    /// selected.
    pub fn server_config(
        &self,
        protocols: &[&[u8]],
    ) -> Result<Arc<ServerConfig>, CredentialsError> {
        if self.source().identity.is_none() {
            return Err(CredentialsError::NoIdentity("to serve"));
        }
        Ok(Arc::new(server::config(&self.0, protocols)))
    }

    /// The configuration for one connection of a caller, with the certificate that is in the files
    /// now.
    pub fn client_config(&self, protocols: &[&[u8]]) -> Arc<ClientConfig> {
        Arc::new(client::config(&self.0, protocols))
    }

    /// The rustls server name of a host: a name, or an address without port.
    pub fn server_name(host: &str) -> Result<ServerName<'static>, CredentialsError> {
        let bare = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'))
            .unwrap_or(host);
        ServerName::try_from(bare.to_owned()).map_err(|_| CredentialsError::NoHost(host.to_owned()))
    }

    /// Reloads the files now. Returns whether the certificates have changed. Not required, because
    /// handshakes check the files. If loading fails, the previous set is kept.
    pub fn reload(&self) -> Result<bool, CredentialsError> {
        self.0.reload()
    }
}

/// Clones are equal.
impl PartialEq for WorkerCredentials {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for WorkerCredentials {}

impl fmt::Debug for WorkerCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WorkerCredentials")
            .field(self.source())
            .finish()
    }
}

#[cfg(test)]
impl WorkerCredentials {
    /// Makes a check of the files due.
    pub(super) fn make_check_due(&self) {
        self.0.make_check_due();
    }
}
