//! The set that counts now, and looking whether there is a newer one.
//!
//! Files are read again when a handshake needs them, at most once a second, and not watched: a certificate is of no use but in a handshake, so that
//! this is when it has to be the right one. Nothing is kept for it, no task and no
//! descriptor, which matters where a hundred credentials are held; it works where inotify says nothing, as with network file systems; and
//! it is not fooled by how Kubernetes changes a secret, which is a symbolic link two directories up. A file system may hang: so a thread looks, and the handshake
//! waits for it no longer than a disk takes.
//! A handshake within that second may still get the set before. Connections that are up are not touched: what was agreed in their
//! handshake holds until they end.

use std::{
    sync::{Arc, Mutex, PoisonError, RwLock, mpsc},
    thread,
    time::{Duration, Instant},
};

use super::{CredentialSource, CredentialsError, credential_set::CredentialSet};

/// How long nobody looks after somebody has.
const PAUSE: Duration = Duration::from_secs(1);
/// How long a handshake waits for whoever looks: longer than a busy machine takes. It may hold up others meanwhile, once.
const PATIENCE: Duration = Duration::from_secs(1);

/// The set that counts now.
#[derive(Debug)]
pub(super) struct CurrentCredentials {
    recipe: CredentialSource,
    set: RwLock<Arc<CredentialSet>>,
    look: Mutex<ReloadCheck>,
}

#[derive(Debug)]
struct ReloadCheck {
    last: Instant,
    /// What was said the last time, so that it is not said every second.
    complaint: Option<String>,
}

impl CurrentCredentials {
    pub(super) fn new(recipe: CredentialSource) -> Result<Self, CredentialsError> {
        let set = CredentialSet::read(&recipe)?;
        let look = Mutex::new(ReloadCheck {
            last: Instant::now(),
            complaint: None,
        });
        Ok(Self {
            recipe,
            set: RwLock::new(Arc::new(set)),
            look,
        })
    }

    pub(super) fn recipe(&self) -> &CredentialSource {
        &self.recipe
    }

    /// The set for a handshake.
    pub(super) fn get(self: &Arc<Self>) -> Arc<CredentialSet> {
        if self.is_to_be_looked_at() {
            let (this, (say, hear)) = (Arc::clone(self), mpsc::sync_channel(1));
            // Ends when it has looked, which may take as long as the file system does.
            let looking = thread::Builder::new()
                .name("credentials".into())
                .spawn(move || {
                    // What is wrong was said, and the set before goes on.
                    let _ = this.reload();
                    let _ = say.send(());
                });
            if looking.is_ok() {
                let _ = hear.recv_timeout(PATIENCE);
            }
        }
        self.held()
    }

    /// Whether somebody has to look, and nobody does. It is left to who is told so.
    fn is_to_be_looked_at(&self) -> bool {
        // Whoever finds that somebody looks already does not wait for him.
        let Ok(mut look) = self.look.try_lock() else {
            return false;
        };
        let is_due = self.recipe.sources().any(|source| source.path().is_some())
            && look.last.elapsed() >= PAUSE;
        if is_due {
            look.last = Instant::now();
        }
        is_due
    }

    /// Looks now, and says whether there is another set.
    pub(super) fn reload(&self) -> Result<bool, CredentialsError> {
        let mut look = self.look.lock().unwrap_or_else(PoisonError::into_inner);
        look.last = Instant::now();
        let set = match CredentialSet::read(&self.recipe) {
            Ok(set) => set,
            Err(error) => {
                let complaint = error.to_string();
                if look.complaint.as_ref() != Some(&complaint) {
                    tracing::warn!(%error, "the credentials have changed and cannot be read; those from before go on");
                    look.complaint = Some(complaint);
                }
                return Err(error);
            }
        };
        look.complaint = None;
        if set.certificates == self.held().certificates {
            return Ok(false);
        }
        tracing::info!("the credentials have changed; new connections are made with them");
        warn_of(&set);
        *self.set.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(set);
        Ok(true)
    }

    /// The set that was last read.
    pub(super) fn held(&self) -> Arc<CredentialSet> {
        Arc::clone(&self.set.read().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Tells whoever runs this what peers will tell him later.
pub(super) fn warn_of(set: &CredentialSet) {
    if let Some(reason) = set.is_refused(rustls::pki_types::UnixTime::now()) {
        tracing::warn!(reason, "peers will refuse our certificate: issue another");
    }
}

#[cfg(test)]
impl CurrentCredentials {
    /// As if nobody had looked for long.
    pub(super) fn is_due(&self) {
        let mut look = self.look.lock().unwrap();
        look.last = look.last.checked_sub(PAUSE).unwrap();
    }
}
