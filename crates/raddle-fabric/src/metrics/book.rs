//! The account of a process, shared by those who write and those who look.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use raddle_broker::{Claim, Fence, Reclaimed, Verdict};

use super::{
    Attempt, Recorder,
    account::{Account, Ending, Moment},
    page::{Kind, Page},
};

/// The account of a process.
pub struct Book {
    opened: Instant,
    inner: Mutex<Inner>,
    recorder: Option<Arc<dyn Recorder>>,
}

#[derive(Debug, Default)]
struct Inner {
    account: Account,
    exits: BTreeMap<ExitReason, u64>,
}

/// Why a worker ended, as seed and rules name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ExitReason {
    /// It has done what it was there for, or was told to stop.
    Success,
    /// There was nothing to do for long enough.
    Idle,
    /// It failed itself, or was killed.
    Error,
    /// It was as old as it was to become.
    Timeout,
    /// It had used up the memory that it was allowed.
    OutOfMemory,
}

impl Book {
    /// An empty one, and who wants to know of each attempt.
    pub fn new(recorder: Option<Arc<dyn Recorder>>) -> Self {
        Self { opened: Instant::now(), inner: Mutex::default(), recorder }
    }

    pub(super) fn now(&self) -> Moment {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Moment { wall: u64::try_from(wall.as_nanos()).unwrap_or(u64::MAX), age: self.opened.elapsed() }
    }

    pub(super) fn claimed(&self, claims: &[Claim], asked: Moment) {
        if !claims.is_empty() {
            let mut inner = self.inner();
            inner.account.claimed(claims, asked, self.now(), self.recorder.is_some());
            let untold = std::mem::take(&mut inner.account.untold);
            drop(inner);
            untold.into_iter().for_each(|attempt| self.record(Some(attempt)));
        }
    }

    pub(super) fn finished(&self, ending: &Ending, verdict: Verdict) {
        let attempt = self.inner().account.finished(ending, verdict, self.now());
        self.record(attempt);
    }

    pub(super) fn released(&self, fence: Fence, verdict: Verdict) {
        let attempt = self.inner().account.released(fence, verdict, self.now());
        self.record(attempt);
    }

    pub(super) fn reclaimed(&self, reclaimed: &[Reclaimed]) {
        for task in reclaimed {
            let attempt = self.inner().account.lost(task.fence, self.now());
            self.record(attempt);
        }
    }

    fn record(&self, attempt: Option<Attempt>) {
        if let (Some(recorder), Some(attempt)) = (&self.recorder, attempt) {
            recorder.record(attempt);
        }
    }

    /// Notes that a worker has ended.
    pub fn exited(&self, reason: ExitReason) {
        *self.inner().exits.entry(reason).or_default() += 1;
    }

    /// Shows what workers have done.
    pub fn show(&self, page: &mut Page) {
        let inner = self.inner();
        let Inner { account, exits } = &*inner;
        let mut ended = page.family("worker_task_total", Kind::Counter, "Attempts of tasks that ended, by how.");
        account.ended().for_each(|(status, count)| ended.sample(&[("status", status)], count as f64));
        page.histogram(
            "worker_runtime_seconds",
            "What a task cost its worker: from the claim to the end in the broker.",
            &account.runtime,
        );
        let mut exited = page.family("worker_exit_reason", Kind::Untyped, "Workers that ended, by why.");
        for reason in ExitReason::ALL {
            exited.sample(&[("reason", reason.as_str())], exits.get(&reason).copied().unwrap_or(0) as f64);
        }
        page.histogram(
            "raddle_task_wait_seconds",
            "How long tasks waited, from when they could be claimed to their first claim.",
            &account.wait,
        );
        page.histogram(
            "raddle_task_run_seconds",
            "How long attempts ran, from the start of the target to its end.",
            &account.run,
        );
        let in_hand = account.in_hand() as f64;
        page.single("raddle_tasks_in_hand", Kind::Gauge, "Tasks that are claimed and have not ended.", in_hand);
        if let Some(recorder) = &self.recorder {
            recorder.show(page);
        }
    }

    /// Shows how many tasks found a worker waiting.
    pub(super) fn show_hits(&self, page: &mut Page) {
        let inner = self.inner();
        let hits = &inner.account.hits;
        page.single(
            "raddle_warm_hit_ratio",
            Kind::Gauge,
            "The share of the last 1000 tasks that found a worker waiting for them.",
            hits.ratio(),
        );
        let mut found =
            page.family("raddle_warm_tasks_total", Kind::Counter, "Tasks, by whether a worker was waiting.");
        found.sample(&[("worker", "waiting")], hits.hits as f64);
        found.sample(&[("worker", "none")], hits.misses as f64);
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        // Numbers that were being added up when somebody panicked are at worst one too low.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Book {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Book").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl ExitReason {
    const ALL: [Self; 5] = [Self::Success, Self::Idle, Self::Error, Self::Timeout, Self::OutOfMemory];

    fn as_str(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Idle => "idle",
            Self::Error => "error",
            Self::Timeout => "timeout",
            Self::OutOfMemory => "out_of_memory",
        }
    }
}
