//! `Shutdown`: requests the end of standalone workers.

use std::sync::Arc;

use tokio::sync::watch;

use crate::worker::StopMode;

/// Requests the end of standalone workers. Clones request the same.
#[derive(Clone, Debug, Default)]
pub struct Shutdown(Arc<watch::Sender<Option<StopMode>>>);

impl Shutdown {
    /// Without a request.
    pub fn new() -> Self {
        Self::default()
    }

    /// Refuses calls, and ends when those in flight have ended. A second request cancels them.
    pub fn drain(&self) {
        self.0.send_modify(|asked| {
            *asked = Some(asked.map_or(StopMode::Drain, |_| StopMode::Cancel))
        });
    }

    /// Refuses calls, and cancels those in flight.
    pub fn cancel(&self) {
        self.0.send_replace(Some(StopMode::Cancel));
    }

    /// Waits for a request.
    pub(super) async fn requested(&self) -> StopMode {
        self.wait(|_| true).await
    }

    /// Waits for a request to cancel.
    pub(super) async fn cancel_requested(&self) {
        self.wait(|mode| mode == StopMode::Cancel).await;
    }

    async fn wait(&self, enough: impl Fn(StopMode) -> bool) -> StopMode {
        let mut request = self.0.subscribe();
        // The sender is part of `self`, so the channel cannot close.
        let requested = request.wait_for(|asked| asked.is_some_and(&enough)).await;
        requested
            .map(|asked| asked.unwrap_or_default())
            .unwrap_or_default()
    }
}
