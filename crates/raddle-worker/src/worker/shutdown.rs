//! Asking a worker to stop, from outside.

use std::sync::Arc;

use tokio::sync::watch;

/// How many requests to stop mean: at once.
pub(super) const KILLED_AFTER: u32 = 3;

/// Asks a worker to stop. Clones ask the same one.
#[derive(Clone, Debug)]
pub struct Shutdown {
    requests: Arc<watch::Sender<u32>>,
}

impl Shutdown {
    /// A shutdown that nobody has asked for yet.
    pub fn new() -> Self {
        Self {
            requests: Arc::new(watch::channel(0).0),
        }
    }

    /// Asks once more: first to finish what runs and take nothing new, then to give back what runs, then to kill it.
    pub fn request(&self) {
        self.requests.send_modify(|count| *count += 1);
    }

    /// Asks for the last stage at once.
    pub fn kill(&self) {
        self.requests
            .send_modify(|count| *count = (*count).max(KILLED_AFTER));
    }

    /// Returns when it has been asked for so many times.
    pub async fn asked(&self, times: u32) {
        // Cannot fail: this is the other end.
        let _ = self.watch().wait_for(|count| *count >= times).await;
    }

    pub(crate) fn watch(&self) -> watch::Receiver<u32> {
        self.requests.subscribe()
    }
}

impl Default for Shutdown {
    fn default() -> Self {
        Self::new()
    }
}
