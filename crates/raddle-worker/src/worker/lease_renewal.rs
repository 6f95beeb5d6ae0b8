//! The worker's lease: renewed on a thread of its own, so that nothing a task does can hold it up.

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

use crate::{orphan_processes, registration::WorkerLease};

/// How often the lease is renewed within its length.
const BEATS_PER_LEASE: u32 = 4;

/// What the worker tells of itself with each beat; kept up to date by the service.
#[derive(Default)]
pub(crate) struct WorkerStats {
    pub(crate) busy: AtomicU32,
    pub(crate) spawned: AtomicU64,
    status: AtomicU8,
    /// Held while the lease is being renewed.
    beats: Mutex<()>,
}

/// The thread that renews a lease. It stops when this is dropped.
pub(crate) struct RenewerThread {
    lost: Arc<Notify>,
    _stop: mpsc::Sender<()>,
}

impl RenewerThread {
    pub(crate) fn start(
        renewer: Box<dyn LeaseRenewer>,
        lease: WorkerLease,
        vitals: Arc<WorkerStats>,
    ) -> Result<Self> {
        lease.holds_from(lease.began);
        let (stop, stopped) = mpsc::channel();
        let lost = Arc::new(Notify::new());
        let notify = Arc::clone(&lost);
        let thread = thread::Builder::new()
            .name("pulse".into())
            .stack_size(256 * 1024);
        let started = thread.spawn(move || {
            if heartbeat(renewer, &lease, &vitals, &stopped) {
                notify.notify_one();
            }
        });
        started.map_err(|error| Error::no_thread(&error))?;
        Ok(Self { lost, _stop: stop })
    }

    /// Returns once when the lease is lost. Cancel-safe.
    pub(crate) async fn lost(&self) {
        self.lost.notified().await;
    }
}

/// Beats until told to stop, with `false`, or until the lease is lost, with `true`.
fn heartbeat(
    mut renewer: Box<dyn LeaseRenewer>,
    lease: &WorkerLease,
    vitals: &WorkerStats,
    stopped: &mpsc::Receiver<()>,
) -> bool {
    // Since when the broker is known to be down: no other worker takes over meanwhile.
    let mut down_since = None;
    let every = lease.length / BEATS_PER_LEASE;
    let mut pause = every / 2;
    while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
        let beating = vitals.beating();
        // Read before the renewal is sent: the lease is at least as long as the runners believe.
        let now = LeaseDeadlinePage::clock_now();
        let found = renewer.renew(vitals.heartbeat());
        // One that failed is repeated soon: there may be time for it yet.
        pause = if matches!(found, Ok(LeaseStatus::Alive(_))) {
            every
        } else {
            every / 4
        };
        let was_down_since: Option<u64> = down_since.take();
        match found {
            Ok(LeaseStatus::Alive(reclaimed)) => {
                lease.holds_from(now);
                orphan_processes::of_the_dead_meanwhile(&reclaimed);
                for task in reclaimed {
                    tracing::warn!(tid = %task.attempt_id.tid, attempt = task.attempt_id.attempt, from = %task.attempt_id.owner, "took a task back");
                }
            }
            Ok(LeaseStatus::Expired) => return true,
            // Leases stand still, and with them the runners' fence.
            Ok(LeaseStatus::Down) => {
                match was_down_since {
                    Some(since) => lease.attempt_id.extend_by(now - since),
                    None => tracing::warn!(
                        "the broker is down: what runs goes on, and the lease stands still"
                    ),
                }
                down_since = Some(now);
            }
            // The runners' fence stays where it is: when this lasts, they stop before another worker takes over. What comes after that is
            // begun under another lease.
            Err(error) => {
                tracing::error!(%error, "the lease could not be renewed");
                if lease.attempt_id.has_passed() {
                    return true;
                }
            }
        }
        drop(beating);
    }
    false
}

impl WorkerStats {
    pub(crate) fn set_status(&self, status: WorkerStatus) {
        self.status.store(status as u8, Ordering::Relaxed);
    }

    /// Keeps others from renewing the lease meanwhile.
    pub(super) fn beating(&self) -> MutexGuard<'_, ()> {
        self.beats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn heartbeat(&self) -> Heartbeat {
        Heartbeat {
            status: WorkerStatus::from_u8(self.status.load(Ordering::Relaxed)),
            busy: self.busy.load(Ordering::Relaxed),
            spawned_count: self.spawned.load(Ordering::Relaxed),
        }
    }
}
