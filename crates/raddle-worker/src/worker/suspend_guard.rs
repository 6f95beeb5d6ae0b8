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
const MAX_SUSPENSION: Duration = Duration::from_secs(24 * 3600);

/// Suspends the process of a worker. Clones refer to the same worker.
#[derive(Clone, Default)]
pub struct SuspendGuard {
    current: Arc<Mutex<Option<CurrentRegistration>>>,
}

/// The worker's current registration.
pub(super) struct CurrentRegistration {
    pub(super) broker: Arc<dyn Broker>,
    pub(super) tid: Tid,
    pub(super) lease: WorkerLease,
    pub(super) stats: Arc<WorkerStats>,
}

impl SuspendGuard {
    /// Extends the lease, calls `stop`, which suspends this process and returns when it resumes,
    /// and shortens the lease again.
    ///
    /// The worker's attempts must be paused first: meanwhile their runners do not notice an expired
    /// lease. This blocks on the broker, so call it on a blocking thread.
    pub fn suspend(&self, mut stop: impl FnMut()) {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(current) = &*current else {
            return stop();
        };
        // A renewal in between would shorten the lease again.
        let _renewal_lock = current.stats.lock_renewal();
        current.renew(MAX_SUSPENSION);
        current.broker.suspend_unlocked(&mut stop);
        current.renew(current.lease.length);
    }

    pub(super) fn set_registration(&self, current: CurrentRegistration) {
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = Some(current);
    }
}

impl CurrentRegistration {
    fn renew(&self, ttl: Duration) {
        let now = LeaseDeadlinePage::clock_now();
        let until = match self
            .broker
            .lease_renewer(self.tid, ttl)
            .renew(self.stats.heartbeat())
        {
            Ok(LeaseStatus::Alive(_)) => ttl,
            // Nothing may go on before the renewer thread notices the expiry.
            Ok(LeaseStatus::Expired) => Duration::ZERO,
            // The lease holds for a while, or does not expire because the server is down. The
            // renewer thread finds out.
            Ok(LeaseStatus::Down) | Err(_) => self.lease.length.min(ttl),
        };
        self.lease.deadline.extend_to(now + until.as_nanos() as u64);
    }
}
