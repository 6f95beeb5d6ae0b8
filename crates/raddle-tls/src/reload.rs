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
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// How long a handshake waits for a check: longer than it takes on a busy machine. The wait may
/// delay other handshakes, once.
const CHECK_TIMEOUT: Duration = Duration::from_secs(1);

/// The current credentials.
#[derive(Debug)]
pub(super) struct CurrentCredentials {
    source: CredentialSource,
    set: RwLock<Arc<CredentialSet>>,
    check: Mutex<ReloadCheck>,
}

#[derive(Debug)]
struct ReloadCheck {
    last: Instant,
    /// The last error logged, so that it is not logged every second.
    last_error: Option<String>,
}

impl CurrentCredentials {
    pub(super) fn new(source: CredentialSource) -> Result<Self, CredentialsError> {
        let set = CredentialSet::read(&source)?;
        let check = Mutex::new(ReloadCheck {
            last: Instant::now(),
            last_error: None,
        });
        Ok(Self {
            source,
            set: RwLock::new(Arc::new(set)),
            check,
        })
    }

    pub(super) fn source(&self) -> &CredentialSource {
        &self.source
    }

    /// The set for a handshake.
    pub(super) fn get(self: &Arc<Self>) -> Arc<CredentialSet> {
        if self.is_check_due() {
            let (this, (done, wait)) = (Arc::clone(self), mpsc::sync_channel(1));
            // The thread ends after its check, however long the file system takes.
            let spawned = thread::Builder::new()
                .name("credentials".into())
                .spawn(move || {
                    // `reload` has logged an error, and keeps the previous set.
                    let _ = this.reload();
                    let _ = done.send(());
                });
            if spawned.is_ok() {
                let _ = wait.recv_timeout(CHECK_TIMEOUT);
            }
        }
        self.current()
    }

    /// Whether a check is due. If so, the caller has to do it.
    fn is_check_due(&self) -> bool {
        // Another thread is checking: use the current set.
        let Ok(mut check) = self.check.try_lock() else {
            return false;
        };
        let is_due = self.source.sources().any(|source| source.path().is_some())
            && check.last.elapsed() >= CHECK_INTERVAL;
        if is_due {
            check.last = Instant::now();
        }
        is_due
    }

    /// Reloads now. Returns whether the certificates have changed.
    pub(super) fn reload(&self) -> Result<bool, CredentialsError> {
        let mut check = self.check.lock().unwrap_or_else(PoisonError::into_inner);
        check.last = Instant::now();
        let set = match CredentialSet::read(&self.source) {
            Ok(set) => set,
            Err(error) => {
                let last_error = error.to_string();
                if check.last_error.as_ref() != Some(&last_error) {
                    tracing::warn!(%error, "cannot load changed credentials; keeping the previous ones");
                    check.last_error = Some(last_error);
                }
                return Err(error);
            }
        };
        check.last_error = None;
        if set.certificates == self.current().certificates {
            return Ok(false);
        }
        tracing::info!("credentials changed; new connections use them");
        warn_if_refused(&set);
        *self.set.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(set);
        Ok(true)
    }

    /// The last loaded set.
    pub(super) fn current(&self) -> Arc<CredentialSet> {
        Arc::clone(&self.set.read().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Logs if peers will refuse our certificate.
pub(super) fn warn_if_refused(set: &CredentialSet) {
    if let Some(reason) = set.refusal_reason(rustls::pki_types::UnixTime::now()) {
        tracing::warn!(reason, "peers will refuse our certificate: issue a new one");
    }
}

#[cfg(test)]
impl CurrentCredentials {
    /// Makes a check due.
    pub(super) fn make_check_due(&self) {
        let mut check = self.check.lock().unwrap();
        check.last = check.last.checked_sub(CHECK_INTERVAL).unwrap();
    }
}
