//! Asking standalone workers to end, from outside.

use std::sync::Arc;

use tokio::sync::watch;

use crate::worker::StopMode;

/// Asks standalone workers to end. Clones ask the same.
#[derive(Clone, Debug, Default)]
pub struct Shutdown(Arc<watch::Sender<Option<StopMode>>>);

impl Shutdown {
    /// One that nobody has asked for yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes no more calls, and ends when those in flight have. Who asks for a second time does not want to wait: they are cancelled.
    pub fn drain(&self) {
        self.0.send_modify(|asked| {
            *asked = Some(asked.map_or(StopMode::Endless, |_| StopMode::None))
        });
    }

    /// Takes no more calls, and cancels those in flight.
    pub fn cancel(&self) {
        self.0.send_replace(Some(StopMode::None));
    }

    /// Waits until it is asked for, and says how patiently.
    pub(super) async fn asked(&self) -> StopMode {
        self.wait(|_| true).await
    }

    /// Waits until nothing is to be waited for any more.
    pub(super) async fn hurried(&self) {
        self.wait(|patience| patience == StopMode::None).await;
    }

    async fn wait(&self, enough: impl Fn(StopMode) -> bool) -> StopMode {
        let mut asked = self.0.subscribe();
        // Who asks is part of this.
        let heard = asked.wait_for(|asked| asked.is_some_and(&enough)).await;
        heard
            .map(|asked| asked.unwrap_or_default())
            .unwrap_or_default()
    }
}
