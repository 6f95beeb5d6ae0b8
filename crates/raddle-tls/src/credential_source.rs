//! What credentials are made from. It can be handed to a process that is to have the same.

use serde::{Deserialize, Serialize};

use super::{CredentialsError, PeerName, PemSource, WorkerCredentials};

/// What credentials are made from. To be written only where nobody else reads: a key that was given as text is in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CredentialSource {
    pub(super) ca: PemSource,
    pub(super) identity: Option<OwnIdentity>,
    pub(super) mutual: bool,
    pub(super) expected: Vec<PeerName>,
}

/// Who we are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OwnIdentity {
    pub(super) certificate: PemSource,
    pub(super) key: PemSource,
}

impl CredentialSource {
    /// Trust in those whom this CA has vouched for, or one of these.
    pub fn new(ca: PemSource) -> Self {
        Self {
            ca: ca.absolute(),
            identity: None,
            mutual: true,
            expected: Vec::new(),
        }
    }

    /// Who we are: a certificate, with those between it and the CA behind it if there are any, and its key.
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

    /// Whether callers have to show a certificate, too. They do, unless this says otherwise.
    #[must_use]
    pub fn mutual(self, mutual: bool) -> Self {
        Self { mutual, ..self }
    }

    /// What workers that are called may be named. One is enough. Without any, it is the host that the connection is made to.
    #[must_use]
    pub fn expecting(self, names: impl IntoIterator<Item = PeerName>) -> Self {
        Self {
            expected: names.into_iter().collect(),
            ..self
        }
    }

    /// Reads all of it.
    pub fn load(self) -> Result<WorkerCredentials, CredentialsError> {
        WorkerCredentials::load(self)
    }

    /// All that it is read from.
    pub(super) fn sources(&self) -> impl Iterator<Item = &PemSource> {
        let own = self
            .identity
            .iter()
            .flat_map(|own| [&own.certificate, &own.key]);
        std::iter::once(&self.ca).chain(own)
    }
}
