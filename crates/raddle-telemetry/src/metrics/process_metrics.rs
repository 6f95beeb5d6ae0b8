//! `Metrics`: the counters of a process, shared by writers and exporters.

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

/// The metrics of a process.
pub struct Metrics {
    opened: Instant,
    /// The same time, in nanoseconds since the epoch.
    opened_at: u64,
    counters: Mutex<TaskCounters>,
}

/// Why a worker exited: the values of `worker_exit_reason`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ExitReason {
    /// It was done, or was asked to stop.
    Success,
    /// It was idle for `idle_exit`.
    Idle,
    /// It failed, or was killed.
    Error,
    /// It has reached `max_uptime`.
    Timeout,
    /// It exceeded its memory limit.
    OutOfMemory,
}

impl Metrics {
    /// Empty metrics, and a recorder for each attempt.
    pub fn new(recorder: Option<Arc<dyn AttemptRecorder>>) -> Self {
        Self {
            opened: Instant::now(),
            opened_at: wall_nanos(),
            counters: Mutex::new(TaskCounters::new(recorder)),
        }
    }

    pub(super) fn now(&self) -> DualTime {
        DualTime {
            wall: wall_nanos(),
            age: self.opened.elapsed(),
        }
    }

    /// Converts a timestamp of the broker.
    pub(super) fn time_of(&self, at: Timestamp) -> DualTime {
        self.time_of_nanos(u64::try_from(at.as_nanosecond()).unwrap_or(0))
    }

    /// Converts nanoseconds since the epoch.
    pub(super) fn time_of_nanos(&self, wall: u64) -> DualTime {
        DualTime {
            wall,
            age: Duration::from_nanos(wall.saturating_sub(self.opened_at)),
        }
    }

    pub(super) fn reclaimed(&self, reclaimed: &[Reclaimed]) {
        let (mut counters, now) = (self.counters(), self.now());
        reclaimed
            .iter()
            .for_each(|task| counters.lost(task.attempt_id, now));
    }

    /// Counts the exit of a worker.
    pub fn exited(&self, reason: ExitReason) {
        *self.counters().exits.entry(reason).or_default() += 1;
    }

    /// Adds the metrics of workers to a page.
    pub fn show(&self, page: &mut MetricsPage) {
        let counters = self.counters();
        page.counts(
            "worker_task_total",
            "Attempts of tasks that ended, by how.",
            "status",
            counters.ended(),
        );
        page.histogram(
            "worker_runtime_seconds",
            "Time from the claim of an attempt to its end in the broker.",
            &counters.runtime,
        );
        let mut exited = page.family(
            "worker_exit_reason",
            MetricKind::Untyped,
            "Workers that ended, by why.",
        );
        for reason in ExitReason::ALL {
            exited.sample(
                &[("reason", reason.as_str())],
                counters.exits.get(&reason).copied().unwrap_or(0) as f64,
            );
        }
        page.histogram(
            "raddle_task_wait_seconds",
            "How long tasks waited, from when they could be claimed to their first claim.",
            &counters.wait,
        );
        page.histogram(
            "raddle_task_run_seconds",
            "How long attempts ran, from the start of the target to its end.",
            &counters.run,
        );
        let active = counters.active() as f64;
        page.gauge(
            "raddle_tasks_in_flight",
            "Tasks that are claimed and have not ended.",
            active,
        );
        if let Some(recorder) = &counters.recorder {
            recorder.show(page);
        }
    }

    /// Adds the metrics of warm workers to a page.
    pub fn show_hits(&self, page: &mut MetricsPage) {
        let hits = &self.counters().hits;
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

    pub(super) fn counters(&self) -> MutexGuard<'_, TaskCounters> {
        // A panic in between loses one count at most.
        self.counters.lock().unwrap_or_else(PoisonError::into_inner)
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
        f.debug_struct("Metrics").finish_non_exhaustive()
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
