//! [`WorkerCredentials`].

use std::{fmt, path::PathBuf, sync::Arc};

use rustls::{ClientConfig, ServerConfig, pki_types::ServerName};

use super::{
    CredentialSource, CredentialsError, PemSource, client,
    reload::{self, CurrentCredentials},
    server,
};

/// A CA, a certificate and its key, for both ends of a connection. They do not change, but for what is in their files; clones are the same
/// credentials.
///
/// | | `mutual` | the worker is verified | the caller is verified |
/// | --- | --- | --- | --- |
/// | mutual TLS, the default | true | yes | yes |
/// | one-way TLS | false | yes | no |
#[derive(Clone)]
pub struct WorkerCredentials(Arc<CurrentCredentials>);

impl WorkerCredentials {
    /// For mutual TLS, from PEM files. They are read again when they have changed.
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

    pub(super) fn load(recipe: CredentialSource) -> Result<Self, CredentialsError> {
        if recipe.mutual && recipe.identity.is_none() {
            return Err(CredentialsError::NoIdentity(
                "for mutual TLS, on both sides",
            ));
        }
        let current = CurrentCredentials::new(recipe)?;
        reload::warn_of(&current.held());
        Ok(Self(Arc::new(current)))
    }

    /// What they were made from, for a process that is to have the same.
    pub fn recipe(&self) -> &CredentialSource {
        self.0.recipe()
    }

    /// Whether callers have to show a certificate, too.
    pub fn is_mutual(&self) -> bool {
        self.recipe().mutual
    }

    /// Whether workers have to be somebody in particular, wherever they are.
    pub fn expects_somebody(&self) -> bool {
        !self.recipe().expected.is_empty()
    }

    /// For a worker that speaks one of these protocols, the first that the caller speaks as well.
    pub fn server_config(
        &self,
        protocols: &[&[u8]],
    ) -> Result<Arc<ServerConfig>, CredentialsError> {
        if self.recipe().identity.is_none() {
            return Err(CredentialsError::NoIdentity("to serve"));
        }
        Ok(Arc::new(server::config(&self.0, protocols)))
    }

    /// For one connection of a caller who speaks one of these protocols. It shows the certificate that is in the files now.
    pub fn client_config(&self, protocols: &[&[u8]]) -> Arc<ClientConfig> {
        Arc::new(client::config(&self.0, protocols))
    }

    /// The name under which rustls is to connect to this host: that of an address, without its port.
    pub fn server_name(host: &str) -> Result<ServerName<'static>, CredentialsError> {
        let bare = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'))
            .unwrap_or(host);
        ServerName::try_from(bare.to_owned()).map_err(|_| CredentialsError::NoHost(host.to_owned()))
    }

    /// Looks at the files now, and says whether there is something new in them. Nobody has to: they are looked at when somebody connects. If they
    /// cannot be read, what was in them before goes on.
    pub fn reload(&self) -> Result<bool, CredentialsError> {
        self.0.reload()
    }
}

/// Clones are the same credentials.
impl PartialEq for WorkerCredentials {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for WorkerCredentials {}

impl fmt::Debug for WorkerCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WorkerCredentials")
            .field(self.recipe())
            .finish()
    }
}

#[cfg(test)]
impl WorkerCredentials {
    /// As if nobody had looked at the files for long.
    pub(super) fn is_due(&self) {
        self.0.is_due();
    }
}
