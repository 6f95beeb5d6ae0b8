//! `CredentialSource`: what credentials are loaded from. It can be passed to a child process.

use serde::{Deserialize, Serialize};

use super::{CredentialsError, PeerName, PemSource, WorkerCredentials};

/// What credentials are loaded from. Serialise it only to a private channel: it may contain a key
/// given as text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CredentialSource {
    pub(super) ca: PemSource,
    pub(super) identity: Option<OwnIdentity>,
    pub(super) mutual: bool,
    pub(super) expected: Vec<PeerName>,
}

/// Our certificate and key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OwnIdentity {
    pub(super) certificate: PemSource,
    pub(super) key: PemSource,
}

impl CredentialSource {
    /// Trusts certificates issued by this CA, or by one of several in the file.
    pub fn new(ca: PemSource) -> Self {
        Self {
            ca: ca.absolute(),
            identity: None,
            mutual: true,
            expected: Vec::new(),
        }
    }

    /// Sets our certificate, followed by intermediate certificates if there are any, and its key.
    #[must_use]
    pub fn identity(self, certificate: PemSource, key: PemSource) -> Self {
        let own = OwnIdentity {
            certificate: certificate.absolute(),
            key: key.absolute(),
        };
        Self {
            identity: Some(own),
            ..self
        }
    }

    /// Sets whether callers must present a certificate too. Default: true.
    #[must_use]
    pub fn mutual(self, mutual: bool) -> Self {
        Self { mutual, ..self }
    }

    /// Sets the names that workers may have; one match is enough. Default: the host that the caller
    /// connects to.
    #[must_use]
    pub fn expecting(self, names: impl IntoIterator<Item = PeerName>) -> Self {
        Self {
            expected: names.into_iter().collect(),
            ..self
        }
    }

    /// Loads the credentials.
    pub fn load(self) -> Result<WorkerCredentials, CredentialsError> {
        WorkerCredentials::load(self)
    }

    /// The files and texts.
    pub(super) fn sources(&self) -> impl Iterator<Item = &PemSource> {
        let own = self
            .identity
            .iter()
            .flat_map(|own| [&own.certificate, &own.key]);
        std::iter::once(&self.ca).chain(own)
    }
}
