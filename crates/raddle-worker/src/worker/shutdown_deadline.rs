//! How long a worker insists on what the broker does not do: for as long as it takes, until it has no time left.

use std::{future::Future, time::Duration};

use tokio::{sync::watch, time::sleep};

/// What is tried a last time has this long. A server that is there answers in a fraction of it.
pub(super) const LAST_TRY: Duration = Duration::from_secs(2);

/// Says that no time is left. Dropping it says so too: nobody waits any more.
pub(crate) struct ShutdownDeadline(watch::Sender<bool>);

/// Hears of it.
#[derive(Clone)]
pub(crate) struct DeadlineWatch(watch::Receiver<bool>);

impl ShutdownDeadline {
    pub(crate) fn new() -> Self {
        Self(watch::channel(false).0)
    }

    pub(crate) fn begin(&self) {
        self.0.send_replace(true);
    }

    pub(crate) fn pace(&self) -> DeadlineWatch {
        DeadlineWatch(self.0.subscribe())
    }
}

impl DeadlineWatch {
    pub(super) fn is_hasty(&self) -> bool {
        *self.0.borrow()
    }

    /// Returns when there is no time left.
    pub(super) async fn haste(&mut self) {
        // An error means that the other end is gone.
        let _ = self.0.wait_for(|hasty| *hasty).await;
    }

    /// Does it, or gives up [`LAST_TRY`] after there was no time left.
    pub(super) async fn bound<T>(&mut self, deed: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            done = deed => Some(done),
            () = async {
                self.haste().await;
                sleep(LAST_TRY).await;
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
    async fn what_hangs_is_given_up_a_while_after_the_haste_began() {
        let haste = ShutdownDeadline::new();
        let mut pace = haste.pace();
        let began = Instant::now();
        let begin = async {
            sleep(Duration::from_secs(60)).await;
            haste.begin();
        };
        assert_eq!(tokio::join!(pace.bound(pending::<()>()), begin).0, None);
        assert_eq!(began.elapsed(), Duration::from_secs(60) + LAST_TRY);
        // What begins later has as long, and what can be done is done.
        assert_eq!(pace.bound(pending::<()>()).await, None);
        assert_eq!(began.elapsed(), Duration::from_secs(60) + 2 * LAST_TRY);
        assert_eq!(pace.bound(ready(1)).await, Some(1));
    }
}
