//! Detects `async fn`s that block their thread, and keeps other calls from waiting for them.
//!
//! The routine runtime has about as many polling threads as there are cores, and a poll that blocks
//! keeps its thread. `Executor::watch_for_blocking` counts periods of [`PERIOD`]. A poll that lasts
//! for a whole period blocks: the log names its routine, and a thread of the [`ReserveThreads`]
//! polls other calls instead. From then on polls of that routine run in [`block_in_place`], which
//! first hands the thread's run queue to another thread, until no poll of it has blocked for
//! [`PROBATION`].

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
        mpsc::{self, Sender},
    },
    time::Duration,
};

use raddle_model::routine::Routines;
use tokio::{runtime::Handle, task::block_in_place};

/// How often polls are checked. A blocking poll is found within two periods, so it delays other
/// calls by less than 100 ms.
pub(super) const PERIOD: Duration = Duration::from_millis(40);
/// After this many periods without a blocking poll, a routine is polled normally again: 10 s.
const PROBATION: u64 = 250;

/// Finds polls that block.
pub(super) struct BlockingDetector {
    /// Number of periods so far.
    ticks: Arc<AtomicU64>,
    routines: HashMap<&'static str, Arc<PollRecord>>,
}

/// What is known of a routine.
struct PollRecord {
    ticks: Arc<AtomicU64>,
    /// The period in which a poll of it was last found to block. 0 if that is too long ago.
    blocked_at: AtomicU64,
}

/// Tracks the polls of one call, without reading a clock.
#[derive(Clone)]
pub(super) struct PollWatch {
    routine: Arc<PollRecord>,
    /// The period in which the current poll began, and [`HANDED_OVER`] if it has given up the
    /// thread's run queue. 0 between polls.
    since: Arc<AtomicU64>,
}

/// Flag in [`PollWatch::since`]: other calls do not wait for this poll.
const HANDED_OVER: u64 = 1 << 63;

impl BlockingDetector {
    pub(super) fn new(routines: &Routines) -> Self {
        let ticks = Arc::new(AtomicU64::new(1));
        let record = || {
            Arc::new(PollRecord {
                ticks: Arc::clone(&ticks),
                blocked_at: AtomicU64::new(0),
            })
        };
        Self {
            routines: routines.names().map(|name| (name, record())).collect(),
            ticks,
        }
    }

    /// Tracks a new call. `routine` must be one of the routines passed to `new`.
    pub(super) fn track_call(&self, routine: &'static str) -> PollWatch {
        PollWatch {
            routine: Arc::clone(&self.routines[routine]),
            since: Arc::default(),
        }
    }

    /// Ends a period.
    pub(super) fn tick(&self) {
        let now = self.ticks.fetch_add(1, Ordering::Relaxed) + 1;
        for record in self.routines.values() {
            let blocked = record.blocked_at.load(Ordering::Relaxed);
            if blocked != 0 && now - blocked > PROBATION {
                record.blocked_at.store(0, Ordering::Relaxed);
            }
        }
    }
}

impl PollWatch {
    /// Runs one poll.
    pub(super) fn track<T>(&self, poll: impl FnOnce() -> T) -> T {
        let now = self.routine.ticks.load(Ordering::Relaxed);
        let hands_over = self.routine.blocked_at.load(Ordering::Relaxed) != 0;
        self.since.store(
            if hands_over { now | HANDED_OVER } else { now },
            Ordering::Relaxed,
        );
        let polled = if hands_over {
            block_in_place(poll)
        } else {
            poll()
        };
        self.since.store(0, Ordering::Relaxed);
        polled
    }

    /// Whether the current poll has lasted for a whole period, that is, blocks. If so, whether it
    /// keeps the thread's run queue.
    pub(super) fn check(&self) -> Option<bool> {
        let (since, now) = (
            self.since.load(Ordering::Relaxed),
            self.routine.ticks.load(Ordering::Relaxed),
        );
        if since == 0 || now.wrapping_sub(since & !HANDED_OVER) < 2 {
            return None;
        }
        self.routine.blocked_at.store(now, Ordering::Relaxed);
        Some(since & HANDED_OVER == 0)
    }
}

/// Threads of the routine runtime that are parked until others are blocked.
#[derive(Default)]
pub(super) struct ReserveThreads(Mutex<Vec<Sender<()>>>);

impl ReserveThreads {
    /// Parks `threads` threads of this runtime, which must be idle.
    pub(super) fn new(runtime: &Handle, threads: usize) -> Self {
        let park = |_| {
            let (release, released) = mpsc::channel();
            // Keeps its thread until the sender is dropped.
            runtime.spawn(async move { released.recv() });
            release
        };
        Self(Mutex::new((0..threads).map(park).collect()))
    }

    /// Number of parked threads.
    pub(super) fn parked(&self) -> usize {
        self.lock().len()
    }

    /// Has up to `threads` more threads poll, permanently.
    pub(super) fn release(&self, threads: usize) {
        let mut reserve = self.lock();
        let left = reserve.len().saturating_sub(threads);
        reserve.truncate(left);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Sender<()>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
