//! `Shutdown`: asks a worker to stop, from outside.

use std::sync::Arc;

use tokio::sync::watch;

/// This many stop requests mean: kill.
pub(super) const KILL_REQUESTS: u32 = 3;

/// Asks a worker to stop. Clones refer to the same worker.
#[derive(Clone, Debug)]
pub struct Shutdown {
    requests: Arc<watch::Sender<u32>>,
}

impl Shutdown {
    /// A shutdown without requests.
    pub fn new() -> Self {
        Self {
            requests: Arc::new(watch::channel(0).0),
        }
    }

    /// Requests the next stage: first drain, then cancel and release, then kill.
    pub fn request(&self) {
        self.requests.send_modify(|count| *count += 1);
    }

    /// Requests the last stage at once.
    pub fn kill(&self) {
        self.requests
            .send_modify(|count| *count = (*count).max(KILL_REQUESTS));
    }

    /// Returns when there have been at least `times` requests.
    pub async fn requested(&self, times: u32) {
        // Cannot fail: `self` is the sender.
        let _ = self.subscribe().wait_for(|count| *count >= times).await;
    }

    /// The number of requests, as it changes.
    pub fn subscribe(&self) -> watch::Receiver<u32> {
        self.requests.subscribe()
    }
}

impl Default for Shutdown {
    fn default() -> Self {
        Self::new()
    }
}
