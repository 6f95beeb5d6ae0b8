//! [`WorkerCredentials`].

use std::{fmt, path::PathBuf, sync::Arc};

use rustls::{ClientConfig, ServerConfig, pki_types::ServerName};

use super::{
    CredentialsError, Fingerprint, Pem, Recipe, client,
    fingerprint::Digest,
    reload::{self, Current},
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
pub struct WorkerCredentials {
    current: Arc<Current>,
    fingerprint: Fingerprint,
}

impl WorkerCredentials {
    /// For mutual TLS, from PEM files. They are read again when they have changed.
    pub fn from_files(
        ca: impl Into<PathBuf>,
        certificate: impl Into<PathBuf>,
        key: impl Into<PathBuf>,
    ) -> Result<Self, CredentialsError> {
        Recipe::new(Pem::file(ca)).identity(Pem::file(certificate), Pem::file(key)).load()
    }

    /// For mutual TLS, from PEM.
    pub fn from_pem(
        ca: impl AsRef<[u8]>,
        certificate: impl AsRef<[u8]>,
        key: impl AsRef<[u8]>,
    ) -> Result<Self, CredentialsError> {
        Recipe::new(Pem::bytes(ca)).identity(Pem::bytes(certificate), Pem::bytes(key)).load()
    }

    pub(super) fn load(recipe: Recipe) -> Result<Self, CredentialsError> {
        if recipe.mutual && recipe.identity.is_none() {
            return Err(CredentialsError::NoIdentity("for mutual TLS, on both sides"));
        }
        let current = Current::new(recipe)?;
        reload::warn_of(&current.held());
        let fingerprint = fingerprint(&current);
        Ok(Self { current: Arc::new(current), fingerprint })
    }

    /// What they were made from, for a process that is to have the same.
    pub fn recipe(&self) -> &Recipe {
        self.current.recipe()
    }

    /// Whether callers have to show a certificate, too.
    pub fn is_mutual(&self) -> bool {
        self.recipe().mutual
    }

    /// Whether workers have to be somebody in particular, wherever they are.
    pub(crate) fn expects_somebody(&self) -> bool {
        !self.recipe().expected.is_empty()
    }

    /// What they are told apart by: the key for what is kept for them. It stays what it was when files have changed: whoever keeps connections by it keeps them.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// For a worker that speaks one of these protocols, the first that the caller speaks as well.
    pub fn server_config(&self, protocols: &[&[u8]]) -> Result<Arc<ServerConfig>, CredentialsError> {
        if self.recipe().identity.is_none() {
            return Err(CredentialsError::NoIdentity("to serve"));
        }
        Ok(Arc::new(server::config(&self.current, protocols)))
    }

    /// For a caller who speaks one of these protocols.
    pub fn client_config(&self, protocols: &[&[u8]]) -> Arc<ClientConfig> {
        Arc::new(client::config(&self.current, protocols))
    }

    /// The name under which rustls is to connect to this host: that of an address, without its port.
    pub fn server_name(host: &str) -> Result<ServerName<'static>, CredentialsError> {
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        ServerName::try_from(bare.to_owned()).map_err(|_| CredentialsError::NoHost(host.to_owned()))
    }

    /// Looks at the files now, and says whether there is something new in them. Nobody has to: they are looked at when somebody connects. If they
    /// cannot be read, what was in them before goes on.
    pub fn reload(&self) -> Result<bool, CredentialsError> {
        self.current.reload()
    }
}

/// Of what they are made from, and of what was in it at the time: what was loaded from the same files before they changed is told apart.
fn fingerprint(current: &Current) -> Fingerprint {
    let recipe = current.recipe();
    let mut digest = Digest::new("raddle credentials");
    digest.add(&[u8::from(recipe.mutual)]);
    for source in recipe.sources() {
        digest.add(source.path().map(|path| path.as_os_str().as_encoded_bytes()).unwrap_or_default());
    }
    digest.add(b"");
    recipe.expected.iter().for_each(|name| digest.add(name.to_string().as_bytes()));
    digest.add(current.held().fingerprint.as_bytes());
    digest.finish()
}

impl PartialEq for WorkerCredentials {
    fn eq(&self, other: &Self) -> bool {
        self.fingerprint == other.fingerprint
    }
}

impl Eq for WorkerCredentials {}

impl fmt::Debug for WorkerCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("WorkerCredentials");
        shown.field("fingerprint", &self.fingerprint).field("recipe", self.recipe()).finish()
    }
}

#[cfg(test)]
impl WorkerCredentials {
    /// As if nobody had looked at the files for long.
    pub(super) fn is_due(&self) {
        self.current.is_due();
    }
}
