//! The account of a process, shared by those who write and those who look.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use jiff::Timestamp;
use raddle_broker::Reclaimed;

use super::{
    AttemptRecorder,
    task_counters::{DualTime, TaskCounters},
    text_format::{MetricKind, MetricsPage},
};

/// The account of a process.
pub struct Metrics {
    opened: Instant,
    /// The same moment, in nanoseconds since the epoch.
    opened_at: u64,
    account: Mutex<TaskCounters>,
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

impl Metrics {
    /// An empty one, and who wants to know of each attempt.
    pub fn new(recorder: Option<Arc<dyn AttemptRecorder>>) -> Self {
        Self {
            opened: Instant::now(),
            opened_at: wall_nanos(),
            account: Mutex::new(TaskCounters::new(recorder)),
        }
    }

    pub(super) fn now(&self) -> DualTime {
        DualTime {
            wall: wall_nanos(),
            age: self.opened.elapsed(),
        }
    }

    /// A time that the broker gives.
    pub(super) fn moment_of(&self, at: Timestamp) -> DualTime {
        self.moment_of_nanos(u64::try_from(at.as_nanosecond()).unwrap_or(0))
    }

    /// The same, in nanoseconds since the epoch.
    pub(super) fn moment_of_nanos(&self, wall: u64) -> DualTime {
        DualTime {
            wall,
            age: Duration::from_nanos(wall.saturating_sub(self.opened_at)),
        }
    }

    pub(super) fn reclaimed(&self, reclaimed: &[Reclaimed]) {
        let (mut account, now) = (self.account(), self.now());
        reclaimed
            .iter()
            .for_each(|task| account.lost(task.attempt_id, now));
    }

    /// Notes that a worker has ended.
    pub fn exited(&self, reason: ExitReason) {
        *self.account().exits.entry(reason).or_default() += 1;
    }

    /// Shows what workers have done.
    pub fn show(&self, page: &mut MetricsPage) {
        let account = self.account();
        page.counts(
            "worker_task_total",
            "Attempts of tasks that ended, by how.",
            "status",
            account.ended(),
        );
        page.histogram(
            "worker_runtime_seconds",
            "What a task cost its worker: from the claim to the end in the broker.",
            &account.runtime,
        );
        let mut exited = page.family(
            "worker_exit_reason",
            MetricKind::Untyped,
            "Workers that ended, by why.",
        );
        for reason in ExitReason::ALL {
            exited.sample(
                &[("reason", reason.as_str())],
                account.exits.get(&reason).copied().unwrap_or(0) as f64,
            );
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
        page.gauge(
            "raddle_tasks_in_hand",
            "Tasks that are claimed and have not ended.",
            in_hand,
        );
        if let Some(recorder) = &account.recorder {
            recorder.show(page);
        }
    }

    /// Shows how many tasks found a worker waiting.
    pub fn show_hits(&self, page: &mut MetricsPage) {
        let hits = &self.account().hits;
        page.gauge(
            "raddle_warm_hit_ratio",
            "The share of the last 1000 tasks that found a worker waiting for them.",
            hits.ratio(),
        );
        let found = [("waiting", hits.hits), ("none", hits.misses)];
        page.counts(
            "raddle_warm_tasks_total",
            "Tasks, by whether a worker was waiting.",
            "worker",
            found,
        );
    }

    pub(super) fn account(&self) -> MutexGuard<'_, TaskCounters> {
        // Numbers that were being added up during a panic are at worst one too low.
        self.account.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn wall_nanos() -> u64 {
    let wall = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(wall.as_nanos()).unwrap_or(u64::MAX)
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Book").finish_non_exhaustive()
    }
}

impl ExitReason {
    const ALL: [Self; 5] = [
        Self::Success,
        Self::Idle,
        Self::Error,
        Self::Timeout,
        Self::OutOfMemory,
    ];

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
