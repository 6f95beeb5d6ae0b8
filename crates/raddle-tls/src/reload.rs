//! Keeps the current credentials, and reloads changed files.
//!
//! Files are checked when a handshake needs them, at most once a second, instead of being watched:
//! a certificate matters only in a handshake. That needs no task and no descriptor per credentials,
//! of which a process may hold hundreds; it works on network file systems, where inotify reports
//! nothing; and it sees how Kubernetes replaces a secret, by a symbolic link two directories up.
//! Because a file system may hang, a thread does the check, and the handshake waits for it no
//! longer than a disk normally takes. A handshake within that second may still get the previous
//! set. Open connections are not affected.

use std::{
    sync::{Arc, Mutex, PoisonError, RwLock, mpsc},
    thread,
    time::{Duration, Instant},
};

use super::{CredentialSource, CredentialsError, credential_set::CredentialSet};

/// Minimum time between two checks.
const PAUSE: Duration = Duration::from_secs(1);
/// How long a handshake waits for a check: longer than it takes on a busy machine. The wait may
/// delay other handshakes, once.
const PATIENCE: Duration = Duration::from_secs(1);

/// The current credentials.
#[derive(Debug)]
pub(super) struct CurrentCredentials {
    source: CredentialSource,
    set: RwLock<Arc<CredentialSet>>,
    look: Mutex<ReloadCheck>,
}

#[derive(Debug)]
struct ReloadCheck {
    last: Instant,
    /// The last error logged, so that it is not logged every second.
    complaint: Option<String>,
}

impl CurrentCredentials {
    pub(super) fn new(source: CredentialSource) -> Result<Self, CredentialsError> {
        let set = CredentialSet::read(&source)?;
        let look = Mutex::new(ReloadCheck {
            last: Instant::now(),
            complaint: None,
        });
        Ok(Self {
            source,
            set: RwLock::new(Arc::new(set)),
            look,
        })
    }

    pub(super) fn source(&self) -> &CredentialSource {
        &self.source
    }

    /// The set for a handshake.
    pub(super) fn get(self: &Arc<Self>) -> Arc<CredentialSet> {
        if self.is_to_be_looked_at() {
            let (this, (say, hear)) = (Arc::clone(self), mpsc::sync_channel(1));
            // The thread ends after its check, however long the file system takes.
            let looking = thread::Builder::new()
                .name("credentials".into())
                .spawn(move || {
                    // `reload` has logged an error, and keeps the previous set.
                    let _ = this.reload();
                    let _ = say.send(());
                });
            if looking.is_ok() {
                let _ = hear.recv_timeout(PATIENCE);
            }
        }
        self.held()
    }

    /// Whether a check is due. If so, the caller has to do it.
    fn is_to_be_looked_at(&self) -> bool {
        // Another thread is checking: use the current set.
        let Ok(mut look) = self.look.try_lock() else {
            return false;
        };
        let is_due = self.source.sources().any(|source| source.path().is_some())
            && look.last.elapsed() >= PAUSE;
        if is_due {
            look.last = Instant::now();
        }
        is_due
    }

    /// Reloads now. Returns whether the certificates have changed.
    pub(super) fn reload(&self) -> Result<bool, CredentialsError> {
        let mut look = self.look.lock().unwrap_or_else(PoisonError::into_inner);
        look.last = Instant::now();
        let set = match CredentialSet::read(&self.source) {
            Ok(set) => set,
            Err(error) => {
                let complaint = error.to_string();
                if look.complaint.as_ref() != Some(&complaint) {
                    tracing::warn!(%error, "cannot load changed credentials; keeping the previous ones");
                    look.complaint = Some(complaint);
                }
                return Err(error);
            }
        };
        look.complaint = None;
        if set.certificates == self.held().certificates {
            return Ok(false);
        }
        tracing::info!("credentials changed; new connections use them");
        warn_of(&set);
        *self.set.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(set);
        Ok(true)
    }

    /// The last loaded set.
    pub(super) fn held(&self) -> Arc<CredentialSet> {
        Arc::clone(&self.set.read().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Logs if peers will refuse our certificate.
pub(super) fn warn_of(set: &CredentialSet) {
    if let Some(reason) = set.is_refused(rustls::pki_types::UnixTime::now()) {
        tracing::warn!(reason, "peers will refuse our certificate: issue a new one");
    }
}

#[cfg(test)]
impl CurrentCredentials {
    /// Makes a check due.
    pub(super) fn is_due(&self) {
        let mut look = self.look.lock().unwrap();
        look.last = look.last.checked_sub(PAUSE).unwrap();
    }
}
