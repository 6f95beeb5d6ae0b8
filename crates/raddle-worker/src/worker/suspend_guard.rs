//! `SuspendGuard`: suspends the process of a worker, as a shell does on Ctrl-Z, without losing its
//! lease.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use raddle_broker::{Broker, LeaseStatus};
use raddle_model::Tid;
use raddle_runner::LeaseDeadlinePage;

use super::lease_renewal::WorkerStats;
use crate::registration::WorkerLease;

/// How long a suspended worker keeps its tasks. If the broker cannot see that the process is gone,
/// other workers take its tasks only after this.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// Suspends the process of a worker. Clones refer to the same worker.
#[derive(Clone, Default)]
pub struct SuspendGuard {
    present: Arc<Mutex<Option<CurrentRegistration>>>,
}

/// The worker's current registration.
pub(super) struct CurrentRegistration {
    pub(super) broker: Arc<dyn Broker>,
    pub(super) tid: Tid,
    pub(super) lease: WorkerLease,
    pub(super) vitals: Arc<WorkerStats>,
}

impl SuspendGuard {
    /// Extends the lease, calls `stop`, which suspends this process and returns when it resumes,
    /// and shortens the lease again.
    ///
    /// The worker's attempts must be paused first: meanwhile their runners do not notice an expired
    /// lease. This blocks on the broker, so call it on a blocking thread.
    pub fn through(&self, mut stop: impl FnMut()) {
        let present = self.present.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(present) = &*present else {
            return stop();
        };
        // A renewal in between would shorten the lease again.
        let _no_beat = present.vitals.beating();
        present.renew(LONGEST);
        present.broker.stop_unlocked(&mut stop);
        present.renew(present.lease.length);
    }

    pub(super) fn enter(&self, present: CurrentRegistration) {
        *self.present.lock().unwrap_or_else(PoisonError::into_inner) = Some(present);
    }
}

impl CurrentRegistration {
    fn renew(&self, ttl: Duration) {
        let now = LeaseDeadlinePage::clock_now();
        let until = match self
            .broker
            .renewer(self.tid, ttl)
            .heartbeat(self.vitals.heartbeat())
        {
            Ok(LeaseStatus::Alive(_)) => ttl,
            // Nothing may go on before the renewer thread notices the expiry.
            Ok(LeaseStatus::Expired) => Duration::ZERO,
            // The lease holds for a while, or does not expire because the server is down. The
            // renewer thread finds out.
            Ok(LeaseStatus::Down) | Err(_) => self.lease.length.min(ttl),
        };
        self.lease
            .attempt_id
            .extend_to(now + until.as_nanos() as u64);
    }
}
