//! Stops a worker in stages: refuse calls, drain or cancel those in flight, close the links, exit.

use std::time::Duration;

use raddle_wire::v1;

use super::executor::Executor;

/// How long cancelled calls may take to end, including their destructors. A blocked thread never
/// notices.
const CANCEL_TIMEOUT: Duration = Duration::from_millis(500);

/// How far the stop has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum StopPhase {
    #[default]
    Serving,
    Stopping,
    Stopped,
}

impl Executor {
    /// Stops the worker. `timeout` is in seconds: 0 cancels the calls in flight, a positive one
    /// waits for them that long first, a negative one without limit.
    pub(super) async fn stop(&self, timeout: f64) -> v1::StopReply {
        let in_flight = self.refuse_calls();
        self.advance_phase(StopPhase::Stopping);
        if timeout < 0.0 {
            self.wait_until_idle().await;
        } else if timeout > 0.0 {
            let timeout = Duration::try_from_secs_f64(timeout).unwrap_or(Duration::MAX);
            let _ = tokio::time::timeout(timeout, self.wait_until_idle()).await;
        }
        let cancelled = self.cancel_all();
        if cancelled > 0 {
            let _ = tokio::time::timeout(CANCEL_TIMEOUT, self.wait_until_idle()).await;
        }
        self.advance_phase(StopPhase::Stopped);
        v1::StopReply {
            ended: in_flight.saturating_sub(cancelled) as u64,
            cancelled: cancelled as u64,
        }
    }

    /// Waits until all calls have ended and the process should exit.
    pub(super) async fn wait_until_stopped(&self) {
        self.wait_for_phase(StopPhase::Stopped).await;
    }

    /// Waits until the worker refuses calls.
    pub(super) async fn wait_until_stopping(&self) {
        self.wait_for_phase(StopPhase::Stopping).await;
    }

    fn advance_phase(&self, phase: StopPhase) {
        self.phase
            .send_modify(|current| *current = phase.max(*current));
    }

    async fn wait_for_phase(&self, phase: StopPhase) {
        let mut current = self.phase.subscribe();
        // The sender is part of `self`, so the channel cannot close.
        let _ = current.wait_for(|current| *current >= phase).await;
    }
}
