//! How a worker ends: no more calls, then those in flight, then the links, then the process.

use std::time::Duration;

use raddle_wire::v1;

use super::executor::Executor;

/// How long calls that were cancelled may take to notice. Their destructors run in that time; a thread that is blocked never notices.
const CANCELLED: Duration = Duration::from_millis(500);

/// How far a worker's end has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum StopPhase {
    #[default]
    Serving,
    Stopping,
    Over,
}

impl Executor {
    /// Ends the worker. `timeout` is in seconds: 0 cancels what is in flight, more waits so long before that, less waits for as long as it takes.
    pub(super) async fn stop(&self, timeout: f64) -> v1::StopReply {
        let in_flight = self.stop_taking();
        self.reach(StopPhase::Stopping);
        if timeout < 0.0 {
            self.idle().await;
        } else if timeout > 0.0 {
            let timeout = Duration::try_from_secs_f64(timeout).unwrap_or(Duration::MAX);
            let _ = tokio::time::timeout(timeout, self.idle()).await;
        }
        let cancelled = self.cancel_all();
        if cancelled > 0 {
            let _ = tokio::time::timeout(CANCELLED, self.idle()).await;
        }
        self.reach(StopPhase::Over);
        v1::StopReply {
            ended: in_flight.saturating_sub(cancelled) as u64,
            cancelled: cancelled as u64,
        }
    }

    /// Waits until the worker is to end.
    pub(super) async fn over(&self) {
        self.reached(StopPhase::Over).await;
    }

    /// Waits until the worker takes no more calls.
    pub(super) async fn stopping(&self) {
        self.reached(StopPhase::Stopping).await;
    }

    fn reach(&self, phase: StopPhase) {
        self.phase
            .send_modify(|reached| *reached = phase.max(*reached));
    }

    async fn reached(&self, phase: StopPhase) {
        let mut reached = self.phase.subscribe();
        // Who tells it is part of this.
        let _ = reached.wait_for(|reached| *reached >= phase).await;
    }
}
