//! `async fn`s that block: how they are found, and why other calls do not wait for them.
//!
//! The runtime of routines polls on about as many threads as there are cores, and a poll that blocks keeps its thread. `Executor::watch_for_blocking` counts
//! periods of [`PERIOD`]. A poll that lasts for a whole period blocks: the log names its routine, and a thread of the [`ReserveThreads`] polls other calls
//! instead. From then on polls of that routine run in [`block_in_place`], which hands the queue of the thread to another thread first, until none
//! has blocked for [`FORGIVEN`].

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

/// How often polls are looked at. One that blocks is found within two periods, so that it delays other calls by less than 100 ms.
pub(super) const PERIOD: Duration = Duration::from_millis(40);
/// After so many periods in which no poll of it blocked, a routine is polled like all others: 10 s.
const FORGIVEN: u64 = 250;

/// Finds polls that block.
pub(super) struct BlockingDetector {
    /// How many periods have passed.
    ticks: Arc<AtomicU64>,
    routines: HashMap<&'static str, Arc<PollRecord>>,
}

/// What is known of a routine.
struct PollRecord {
    ticks: Arc<AtomicU64>,
    /// When a poll of it was last found to block. 0 if that is too long ago to count.
    blocked: AtomicU64,
}

/// One call, as far as its polls are concerned. It costs no look at a clock.
#[derive(Clone)]
pub(super) struct PollWatch {
    routine: Arc<PollRecord>,
    /// When the poll began that is under way, and whether it has given the queue of its thread away ([`GIVEN_AWAY`]). 0 between polls.
    since: Arc<AtomicU64>,
}

/// Set in [`PollWatch::since`]: other calls do not wait for this poll.
const GIVEN_AWAY: u64 = 1 << 63;

impl BlockingDetector {
    pub(super) fn new(routines: &Routines) -> Self {
        let ticks = Arc::new(AtomicU64::new(1));
        let record = || {
            Arc::new(PollRecord {
                ticks: Arc::clone(&ticks),
                blocked: AtomicU64::new(0),
            })
        };
        Self {
            routines: routines.names().map(|name| (name, record())).collect(),
            ticks,
        }
    }

    /// For a new call of a routine, which is one of those that this was made with.
    pub(super) fn watch(&self, routine: &'static str) -> PollWatch {
        PollWatch {
            routine: Arc::clone(&self.routines[routine]),
            since: Arc::default(),
        }
    }

    /// A period is over.
    pub(super) fn tick(&self) {
        let now = self.ticks.fetch_add(1, Ordering::Relaxed) + 1;
        for record in self.routines.values() {
            let blocked = record.blocked.load(Ordering::Relaxed);
            if blocked != 0 && now - blocked > FORGIVEN {
                record.blocked.store(0, Ordering::Relaxed);
            }
        }
    }
}

impl PollWatch {
    /// Runs one poll.
    pub(super) fn around<T>(&self, poll: impl FnOnce() -> T) -> T {
        let now = self.routine.ticks.load(Ordering::Relaxed);
        let gives_away = self.routine.blocked.load(Ordering::Relaxed) != 0;
        self.since.store(
            if gives_away { now | GIVEN_AWAY } else { now },
            Ordering::Relaxed,
        );
        let polled = if gives_away {
            block_in_place(poll)
        } else {
            poll()
        };
        self.since.store(0, Ordering::Relaxed);
        polled
    }

    /// Whether the poll that is under way has lasted for a whole period, and so blocks. If so, whether it keeps a thread from other calls.
    pub(super) fn look(&self) -> Option<bool> {
        let (since, now) = (
            self.since.load(Ordering::Relaxed),
            self.routine.ticks.load(Ordering::Relaxed),
        );
        if since == 0 || now.wrapping_sub(since & !GIVEN_AWAY) < 2 {
            return None;
        }
        self.routine.blocked.store(now, Ordering::Relaxed);
        Some(since & GIVEN_AWAY == 0)
    }
}

/// Threads of the runtime of routines that poll nothing until others are blocked.
#[derive(Default)]
pub(super) struct ReserveThreads(Mutex<Vec<Sender<()>>>);

impl ReserveThreads {
    /// So many threads of this runtime, on which nothing runs so far.
    pub(super) fn new(runtime: &Handle, threads: usize) -> Self {
        let hold_back = |_| {
            let (release, released) = mpsc::channel();
            // It keeps its thread until the sender is dropped, and polls nothing.
            runtime.spawn(async move { released.recv() });
            release
        };
        Self(Mutex::new((0..threads).map(hold_back).collect()))
    }

    /// How many are left.
    pub(super) fn left(&self) -> usize {
        self.lock().len()
    }

    /// Has so many more threads poll, if there are as many. They go on to.
    pub(super) fn release(&self, threads: usize) {
        let mut reserve = self.lock();
        let left = reserve.len().saturating_sub(threads);
        reserve.truncate(left);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Sender<()>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
