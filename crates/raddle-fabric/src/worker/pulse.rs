//! The worker's lease: renewed on a thread of its own, so that nothing a task does can hold it up.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering},
        mpsc::{self, RecvTimeoutError},
    },
    thread,
};

use raddle_broker::{Error, Heart, Pulse, Result};
use raddle_core::worker::{Beat, WorkerStatus};
use raddle_exec::FencePage;
use tokio::sync::Notify;

use crate::{leftovers, line::Lease};

/// How often the lease is renewed within its length.
const BEATS_PER_LEASE: u32 = 4;

/// What the worker tells of itself with each beat; kept up to date by the service.
#[derive(Default)]
pub(crate) struct Vitals {
    pub(crate) busy: AtomicU32,
    pub(crate) spawned: AtomicU64,
    status: AtomicU8,
    /// Held while the lease is being renewed.
    beats: Mutex<()>,
}

/// The thread that renews a lease. It stops when this is dropped.
pub(crate) struct Beats {
    lost: Arc<Notify>,
    _stop: mpsc::Sender<()>,
}

impl Beats {
    pub(crate) fn start(heart: Box<dyn Heart>, lease: Lease, vitals: Arc<Vitals>) -> Result<Self> {
        lease.holds_from(lease.began);
        let (stop, stopped) = mpsc::channel();
        let lost = Arc::new(Notify::new());
        let notify = Arc::clone(&lost);
        let thread = thread::Builder::new().name("pulse".into()).stack_size(256 * 1024);
        let started = thread.spawn(move || {
            if beat(heart, &lease, &vitals, &stopped) {
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
fn beat(mut heart: Box<dyn Heart>, lease: &Lease, vitals: &Vitals, stopped: &mpsc::Receiver<()>) -> bool {
    // Since when the broker is known to be down: no other worker takes over meanwhile.
    let mut down_since = None;
    let every = lease.length / BEATS_PER_LEASE;
    let mut pause = every / 2;
    while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
        let beating = vitals.beating();
        // Read before the renewal is sent: the lease is at least as long as the runners believe.
        let now = FencePage::clock_now();
        let found = heart.beat(vitals.beat());
        // One that failed is repeated soon: there may be time for it yet.
        pause = if matches!(found, Ok(Pulse::Alive(_))) { every } else { every / 4 };
        let was_down_since: Option<u64> = down_since.take();
        match found {
            Ok(Pulse::Alive(reclaimed)) => {
                lease.holds_from(now);
                leftovers::of_the_dead_meanwhile(&reclaimed);
                for task in reclaimed {
                    tracing::warn!(tid = %task.fence.tid, attempt = task.fence.attempt, from = %task.fence.owner, "took a task back");
                }
            }
            Ok(Pulse::Expired) => return true,
            // Leases stand still, and with them the runners' fence.
            Ok(Pulse::Down) => {
                match was_down_since {
                    Some(since) => lease.fence.extend_by(now - since),
                    None => tracing::warn!("the broker is down: what runs goes on, and the lease stands still"),
                }
                down_since = Some(now);
            }
            // The runners' fence stays where it is: when this lasts, they stop before another worker takes over. What comes after that is
            // begun under another lease.
            Err(error) => {
                tracing::error!(%error, "the lease could not be renewed");
                if lease.fence.has_passed() {
                    return true;
                }
            }
        }
        drop(beating);
    }
    false
}

impl Vitals {
    pub(crate) fn set_status(&self, status: WorkerStatus) {
        self.status.store(status as u8, Ordering::Relaxed);
    }

    /// Keeps others from renewing the lease meanwhile.
    pub(super) fn beating(&self) -> MutexGuard<'_, ()> {
        self.beats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn beat(&self) -> Beat {
        Beat {
            status: WorkerStatus::from_u8(self.status.load(Ordering::Relaxed)),
            busy: self.busy.load(Ordering::Relaxed),
            spawned_count: self.spawned.load(Ordering::Relaxed),
        }
    }
}
