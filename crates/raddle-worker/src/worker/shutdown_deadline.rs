//! The shutdown deadline: until it starts, broker calls are retried without limit.

use std::{future::Future, time::Duration};

use tokio::{sync::watch, time::sleep};

/// Time for the last try of each call. A healthy server answers in a fraction of it.
pub(super) const LAST_TRY_TIMEOUT: Duration = Duration::from_secs(2);

/// The sender. Dropping it passes the deadline too.
pub struct ShutdownDeadline(watch::Sender<bool>);

/// The receiver.
#[derive(Clone)]
pub struct DeadlineWatch(watch::Receiver<bool>);

impl Default for ShutdownDeadline {
    fn default() -> Self {
        Self::new()
    }
}

impl ShutdownDeadline {
    /// A deadline that has not passed.
    pub fn new() -> Self {
        Self(watch::channel(false).0)
    }

    /// Passes the deadline.
    pub fn pass(&self) {
        self.0.send_replace(true);
    }

    /// A receiver.
    pub fn watch(&self) -> DeadlineWatch {
        DeadlineWatch(self.0.subscribe())
    }
}

impl DeadlineWatch {
    pub(super) fn has_passed(&self) -> bool {
        *self.0.borrow()
    }

    /// Returns when the deadline has passed.
    pub(super) async fn passed(&mut self) {
        // An error means that the sender is gone.
        let _ = self.0.wait_for(|passed| *passed).await;
    }

    /// Awaits a future, and gives up [`LAST_TRY_TIMEOUT`] after the deadline.
    pub(super) async fn limit<T>(&mut self, call: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            done = call => Some(done),
            () = async {
                self.passed().await;
                sleep(LAST_TRY_TIMEOUT).await;
            } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn gives_up_a_hanging_call_after_the_deadline() {
        let deadline = ShutdownDeadline::new();
        let mut watch = deadline.watch();
        let began = Instant::now();
        let pass = async {
            sleep(Duration::from_secs(60)).await;
            deadline.pass();
        };
        assert_eq!(tokio::join!(watch.limit(pending::<()>()), pass).0, None);
        assert_eq!(began.elapsed(), Duration::from_secs(60) + LAST_TRY_TIMEOUT);
        // A later call gets the same time, and one that is ready succeeds.
        assert_eq!(watch.limit(pending::<()>()).await, None);
        assert_eq!(
            began.elapsed(),
            Duration::from_secs(60) + 2 * LAST_TRY_TIMEOUT
        );
        assert_eq!(watch.limit(ready(1)).await, Some(1));
    }
}
