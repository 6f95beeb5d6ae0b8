//! Lease renewal, on its own thread, so that no task can delay it.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering},
        mpsc::{self, RecvTimeoutError},
    },
    thread,
};

use raddle_broker::{Error, LeaseRenewer, LeaseStatus, Result};
use raddle_model::worker::{Heartbeat, WorkerStatus};
use raddle_runner::LeaseDeadlinePage;
use tokio::sync::Notify;

use raddle_client::orphan_processes;

use crate::registration::WorkerLease;

/// Renewals per lease length.
const RENEWALS_PER_LEASE: u32 = 4;

/// The values that a heartbeat reports about the worker. The service keeps them up to date.
#[derive(Default)]
pub struct WorkerStats {
    /// Attempts that run.
    pub busy: AtomicU32,
    /// Attempts started so far.
    pub spawned: AtomicU64,
    status: AtomicU8,
    /// Held during a renewal.
    renewal_lock: Mutex<()>,
}

/// The thread that renews a lease. Dropping this stops it.
pub struct RenewerThread {
    lost: Arc<Notify>,
    _stop: mpsc::Sender<()>,
}

impl RenewerThread {
    /// Starts the thread. `lease` was just granted.
    pub fn start(
        renewer: Box<dyn LeaseRenewer>,
        lease: WorkerLease,
        stats: Arc<WorkerStats>,
    ) -> Result<Self> {
        lease.extend_from(lease.requested_at);
        let (stop, stopped) = mpsc::channel();
        let lost = Arc::new(Notify::new());
        let notify = Arc::clone(&lost);
        let thread = thread::Builder::new()
            .name("lease-renewal".into())
            .stack_size(256 * 1024);
        let started = thread.spawn(move || {
            if renew_until_stopped(renewer, &lease, &stats, &stopped) {
                notify.notify_one();
            }
        });
        started.map_err(|error| Error::no_thread(&error))?;
        Ok(Self { lost, _stop: stop })
    }

    /// Returns once, when the lease is lost. Cancel-safe.
    pub async fn lost(&self) {
        self.lost.notified().await;
    }
}

/// Renews until stopped (returns `false`) or until the lease is lost (returns `true`).
fn renew_until_stopped(
    mut renewer: Box<dyn LeaseRenewer>,
    lease: &WorkerLease,
    stats: &WorkerStats,
    stopped: &mpsc::Receiver<()>,
) -> bool {
    // When the broker was found down. No other worker can take over while it is down.
    let mut down_since = None;
    let every = lease.length / RENEWALS_PER_LEASE;
    let mut pause = every / 2;
    while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
        let renewing = stats.lock_renewal();
        // Taken before the renewal is sent, so the lease ends no earlier than the runners believe.
        let now = LeaseDeadlinePage::clock_now();
        let status = renewer.renew(stats.heartbeat());
        // A failed renewal is repeated soon, while there is still time.
        pause = if matches!(status, Ok(LeaseStatus::Alive(_))) {
            every
        } else {
            every / 4
        };
        let was_down_since: Option<u64> = down_since.take();
        match status {
            Ok(LeaseStatus::Alive(reclaimed)) => {
                lease.extend_from(now);
                orphan_processes::kill_orphans_of_reclaimed_in_background(&reclaimed);
                for task in reclaimed {
                    tracing::warn!(tid = %task.attempt_id.tid, attempt = task.attempt_id.attempt, from = %task.attempt_id.owner, "reclaimed a task");
                }
            }
            Ok(LeaseStatus::Expired) => return true,
            // Leases do not expire while the broker is down, so extend the runners' deadline too.
            Ok(LeaseStatus::Down) => {
                match was_down_since {
                    Some(since) => lease.deadline.extend_by(now - since),
                    None => {
                        tracing::warn!(
                            "the broker is down: attempts go on, and the lease does not expire"
                        )
                    }
                }
                down_since = Some(now);
            }
            // The runners' deadline stays: if this lasts, they stop before another worker takes
            // over. Later attempts run under a new lease.
            Err(error) => {
                tracing::error!(%error, "the lease could not be renewed");
                if lease.deadline.has_passed() {
                    return true;
                }
            }
        }
        drop(renewing);
    }
    false
}

impl WorkerStats {
    /// Sets the status in the registry.
    pub fn set_status(&self, status: WorkerStatus) {
        self.status.store(status as u8, Ordering::Relaxed);
    }

    /// Keeps the renewer thread from renewing meanwhile.
    pub(super) fn lock_renewal(&self) -> MutexGuard<'_, ()> {
        self.renewal_lock
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn heartbeat(&self) -> Heartbeat {
        Heartbeat {
            status: WorkerStatus::from_u8(self.status.load(Ordering::Relaxed)),
            busy: self.busy.load(Ordering::Relaxed),
            spawned_count: self.spawned.load(Ordering::Relaxed),
        }
    }
}
