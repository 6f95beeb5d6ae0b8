//! How a worker ends: no more calls, then those in flight, then the links, then the process.

use std::{sync::Arc, time::Duration};

use raddle_wire::v1;
use tokio::sync::watch;

use super::executor::Executor;

/// How long calls that were cancelled may take to notice. Their destructors run in that time; a thread that is blocked never notices.
const CANCELLED: Duration = Duration::from_millis(500);

/// Stops a worker.
#[derive(Clone)]
pub(super) struct Stopper(Arc<Shared>);

struct Shared {
    executor: Arc<Executor>,
    phase: watch::Sender<Phase>,
}

/// How far a worker's end has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Serving,
    Stopping,
    Over,
}

impl Stopper {
    pub(super) fn new(executor: Arc<Executor>) -> Self {
        Self(Arc::new(Shared { executor, phase: watch::Sender::new(Phase::Serving) }))
    }

    /// Ends the worker. `timeout` is in seconds: 0 cancels what is in flight, more waits so long before that, less waits for as long as it takes.
    pub(super) async fn stop(&self, timeout: f64) -> v1::StopReply {
        let executor = &self.0.executor;
        let in_flight = executor.stop_taking();
        self.reach(Phase::Stopping);
        if timeout < 0.0 {
            executor.idle().await;
        } else if timeout > 0.0 {
            let timeout = Duration::try_from_secs_f64(timeout).unwrap_or(Duration::MAX);
            let _ = tokio::time::timeout(timeout, executor.idle()).await;
        }
        let cancelled = executor.cancel_all();
        if cancelled > 0 {
            let _ = tokio::time::timeout(CANCELLED, executor.idle()).await;
        }
        self.reach(Phase::Over);
        v1::StopReply { ended: in_flight.saturating_sub(cancelled) as u64, cancelled: cancelled as u64 }
    }

    /// Waits until the worker is to end.
    pub(super) async fn over(&self) {
        self.reached(Phase::Over).await;
    }

    /// Waits until the worker takes no more calls.
    pub(super) async fn stopping(&self) {
        self.reached(Phase::Stopping).await;
    }

    fn reach(&self, phase: Phase) {
        self.0.phase.send_modify(|reached| *reached = phase.max(*reached));
    }

    async fn reached(&self, phase: Phase) {
        let mut reached = self.0.phase.subscribe();
        // Who tells it is part of this.
        let _ = reached.wait_for(|reached| *reached >= phase).await;
    }
}
