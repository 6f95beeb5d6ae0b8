//! The worker's lease: renewed on a thread of its own, so that nothing a task does can hold it up.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering},
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::Duration,
};

use raddle_broker::{Error, Heart, Pulse};
use raddle_core::worker::{Beat, WorkerStatus};
use raddle_exec::FencePage;
use tokio::{
    sync::oneshot,
    time::{Instant, sleep_until},
};

use crate::leftovers;

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

/// The beating thread. It stops when this is dropped.
pub(crate) struct Beats {
    phase: Phase,
}

enum Phase {
    /// The lease is fresh: a worker that lives shorter than its first beat takes need not pay for a thread.
    Fresh {
        start_at: Instant,
        /// When the lease is over without a beat.
        until: Instant,
        heart: Box<dyn Heart>,
        lease: Duration,
        fence: Arc<FencePage>,
        vitals: Arc<Vitals>,
    },
    Beating {
        lost: oneshot::Receiver<()>,
        _stop: mpsc::Sender<()>,
    },
    Over,
}

impl Beats {
    /// For a worker whose lease began at `began`, on the monotonic clock.
    pub(crate) fn new(
        heart: Box<dyn Heart>,
        lease: Duration,
        began: u64,
        fence: Arc<FencePage>,
        vitals: Arc<Vitals>,
    ) -> Self {
        fence.extend_to(began + lease.as_nanos() as u64);
        let now = Instant::now();
        let (start_at, until) = (now + lease / BEATS_PER_LEASE / 2, now + lease);
        Self { phase: Phase::Fresh { start_at, until, heart, lease, fence, vitals } }
    }

    /// Returns when the lease is lost, with an error if that is because the system gives no thread to renew it on. Dropping it in between
    /// loses nothing.
    pub(crate) async fn lost(&mut self) -> Option<Error> {
        while let Phase::Fresh { start_at, .. } = &self.phase {
            sleep_until(*start_at).await;
            if let Err(error) = self.start() {
                return Some(error);
            }
        }
        let is_lost = match &mut self.phase {
            Phase::Beating { lost, .. } => lost.await.is_ok(),
            _ => false,
        };
        self.phase = Phase::Over;
        if !is_lost {
            std::future::pending::<()>().await;
        }
        None
    }

    /// Starts the thread, or else says when to try again. The error means that it is too late for that.
    fn start(&mut self) -> Result<(), Error> {
        let Phase::Fresh { until, heart, lease, fence, vitals, .. } = std::mem::replace(&mut self.phase, Phase::Over)
        else {
            return Ok(());
        };
        let (stop, stopped) = mpsc::channel();
        let (lose, lost) = oneshot::channel();
        // What a thread that cannot be started was to have is lost with it, unless it is somewhere else.
        let place = Arc::new(Mutex::new(Some(heart)));
        let (there, page, tells) = (Arc::clone(&place), Arc::clone(&fence), Arc::clone(&vitals));
        let started = thread::Builder::new().name("pulse".into()).stack_size(256 * 1024).spawn(move || {
            let heart = there.lock().unwrap_or_else(PoisonError::into_inner).take();
            if heart.is_some_and(|heart| beat(heart, lease, &page, &tells, &stopped)) {
                let _ = lose.send(());
            }
        });
        self.phase = match started {
            Ok(_) => Phase::Beating { lost, _stop: stop },
            Err(error) if until <= Instant::now() => return Err(Error::no_thread(&error)),
            Err(error) => {
                tracing::error!(%error, "the lease cannot be renewed, for the system gives no thread");
                let heart = place.lock().unwrap_or_else(PoisonError::into_inner).take();
                let heart = heart.expect("only a thread that was started takes it");
                let start_at = (Instant::now() + lease / BEATS_PER_LEASE).min(until);
                Phase::Fresh { start_at, until, heart, lease, fence, vitals }
            }
        };
        Ok(())
    }
}

/// Beats until told to stop, with `false`, or until the lease is lost, with `true`.
fn beat(
    mut heart: Box<dyn Heart>,
    lease: Duration,
    fence: &FencePage,
    vitals: &Vitals,
    stopped: &mpsc::Receiver<()>,
) -> bool {
    // Since when the broker is known to be down, and nobody can take over.
    let mut down_since = None;
    loop {
        let beating = vitals.beating();
        // Read before the renewal is sent: the lease is at least as long as the runners believe.
        let now = FencePage::clock_now();
        let found = heart.beat(vitals.beat());
        let is_alive = matches!(found, Ok(Pulse::Alive(_)));
        let was_down_since: Option<u64> = down_since.take();
        match found {
            Ok(Pulse::Alive(reclaimed)) => {
                fence.extend_to(now + lease.as_nanos() as u64);
                leftovers::of_the_dead_meanwhile(&reclaimed);
                for task in reclaimed {
                    tracing::warn!(tid = %task.fence.tid, attempt = task.fence.attempt, from = %task.owner, "took a task back");
                }
            }
            Ok(Pulse::Expired) => return true,
            // Leases stand still, and with them the runners' fence.
            Ok(Pulse::Down) => {
                match was_down_since {
                    Some(since) => fence.extend_by(now - since),
                    None => tracing::warn!("the broker is down: what runs goes on, and the lease stands still"),
                }
                down_since = Some(now);
            }
            // The runners' fence stays where it is: when this lasts, they stop before anybody else takes over. What comes after that is
            // begun under another lease.
            Err(error) => {
                tracing::error!(%error, "the lease could not be renewed");
                if fence.has_passed() {
                    return true;
                }
            }
        }
        drop(beating);
        // One that failed is repeated soon: there may be time for it yet.
        let pause = lease / BEATS_PER_LEASE / if is_alive { 1 } else { 4 };
        if stopped.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
            return false;
        }
    }
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
