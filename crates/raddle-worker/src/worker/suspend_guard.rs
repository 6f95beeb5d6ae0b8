//! Stopping the process of a worker for a while, as a shell does on Ctrl-Z, without losing what it has.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use raddle_broker::{Broker, LeaseStatus};
use raddle_model::Tid;
use raddle_runner::LeaseDeadlinePage;

use super::lease_renewal::WorkerStats;
use crate::registration::WorkerLease;

/// How long a worker whose process stands still keeps what it has. Where the broker cannot see that the process is gone, nobody takes its
/// task before this is over.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// A worker whose process may be stopped. Clones mean the same one.
#[derive(Clone, Default)]
pub struct SuspendGuard {
    present: Arc<Mutex<Option<CurrentRegistration>>>,
}

/// The worker as it is registered at present.
pub(super) struct CurrentRegistration {
    pub(super) broker: Arc<dyn Broker>,
    pub(super) tid: Tid,
    pub(super) lease: WorkerLease,
    pub(super) vitals: Arc<WorkerStats>,
}

impl SuspendGuard {
    /// Calls `stop`, which stops this process and returns when it goes on. The lease is long enough for that, and as short as ever
    /// afterwards.
    ///
    /// What the worker runs has to be paused before: its runner does not see meanwhile that the lease runs out. Takes as long as the broker
    /// does, and so is nothing for a thread that others wait for.
    pub fn through(&self, mut stop: impl FnMut()) {
        let present = self.present.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(present) = &*present else {
            return stop();
        };
        // A beat in between would make the lease short again.
        let _no_beat = present.vitals.beating();
        present.renew(LONGEST);
        present.broker.suspend_unlocked(&mut stop);
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
            .lease_renewer(self.tid, ttl)
            .renew(self.vitals.heartbeat())
        {
            Ok(LeaseStatus::Alive(_)) => ttl,
            // Whatever was asked for: nothing of it is to go on before the pulse has found out.
            Ok(LeaseStatus::Expired) => Duration::ZERO,
            // The lease holds for a while yet, or stands still with its server. The pulse finds out.
            Ok(LeaseStatus::Down) | Err(_) => self.lease.length.min(ttl),
        };
        self.lease
            .attempt_id
            .extend_to(now + until.as_nanos() as u64);
    }
}
