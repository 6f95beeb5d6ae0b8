//! Counts of tasks, queues and workers.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use raddle_broker::{Broker, TaskFilter};
use raddle_model::{Progress, TaskState, TaskView, Tid, WorkerEntry};
use serde::Serialize;

use crate::Result;

/// The number of running tasks whose progress is read.
const MAX_PROGRESS: u32 = 20;

/// The state of a broker.
#[derive(Clone, Debug, Serialize)]
pub struct Overview {
    /// The URL of the broker, without its password.
    pub broker: String,
    /// The number of tasks in each state.
    pub tasks: BTreeMap<TaskState, u64>,
    /// The number of tasks that are ready to run, by queue.
    pub ready: BTreeMap<String, u64>,
    /// The number of tasks that wait for a time.
    pub delayed: u64,
    /// The number of paused tasks.
    pub paused: u64,
    /// The number of dead letters.
    pub dead: u64,
    /// The number of writes of attempts that were not the latest.
    pub stale_writes: u64,
    /// The live workers.
    pub workers: Vec<WorkerEntry>,
    /// The progress of running tasks that report it.
    pub progress: Vec<TaskProgress>,
    /// The unfinished work, while it is watched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub work: Option<WorkLeft>,
}

/// The progress of a running task.
#[derive(Clone, Debug, Serialize)]
pub struct TaskProgress {
    /// The task.
    pub tid: Tid,
    /// Its name.
    #[serde(skip)]
    pub name: String,
    /// The reported progress.
    pub progress: Progress,
}

/// How much of the watched work is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct WorkLeft {
    /// How many tasks have ended since the watch began.
    pub done: u64,
    /// How many tasks are not finished.
    pub left: u64,
    /// The remaining time at the present rate.
    pub left_seconds: Option<u64>,
}

impl Overview {
    /// Reads the state of the broker at `url`.
    pub async fn read(broker: &dyn Broker, url: String) -> Result<Self> {
        let mut summary = broker.summary().await?;
        for state in TaskState::ALL {
            summary.states.entry(state).or_default();
        }
        let workers = broker.workers().await?;
        let filter = TaskFilter {
            states: vec![TaskState::Running],
            limit: MAX_PROGRESS,
            ..TaskFilter::default()
        };
        let running = broker.tasks(filter).await?;
        Ok(Self {
            broker: url,
            tasks: summary.states,
            ready: summary.ready,
            delayed: summary.delayed,
            paused: summary.paused,
            dead: summary.dead,
            stale_writes: summary.stale_writes,
            workers,
            progress: running.into_iter().filter_map(TaskProgress::new).collect(),
            work: None,
        })
    }
}

impl TaskProgress {
    fn new(task: TaskView) -> Option<Self> {
        Some(Self {
            tid: task.tid,
            name: task.spec.display_name().into(),
            progress: task.progress?,
        })
    }
}

/// The unfinished tasks that a watch has seen, and how many of them have ended.
#[derive(Debug, Default)]
pub struct WatchedTasks {
    /// The time of the first update, and the number of finished tasks then.
    begun: Option<(Instant, u64)>,
    finished: u64,
    left: u64,
    had_work: bool,
}

impl WatchedTasks {
    /// Updates the counts with those of the broker.
    pub fn update(&mut self, tasks: &BTreeMap<TaskState, u64>, now: Instant) {
        self.left = tasks
            .iter()
            .filter(|(state, _)| !state.is_terminal())
            .map(|(_, n)| n)
            .sum();
        let finished = tasks.values().sum::<u64>() - self.left;
        let (_, before) = *self.begun.get_or_insert((now, finished));
        // Records that have expired meanwhile are missing.
        self.finished = finished.saturating_sub(before).max(self.finished);
        self.had_work |= self.left + self.finished > 0;
    }

    /// Whether there was work and none is left. A watch that begins before the work waits for it.
    pub fn is_done(&self) -> bool {
        self.left == 0 && self.had_work
    }

    /// How much is left.
    pub fn work_left(&self, now: Instant) -> WorkLeft {
        WorkLeft {
            done: self.finished,
            left: self.left,
            left_seconds: self.estimate(now).map(|left| left.as_secs()),
        }
    }

    /// The remaining time at the present rate.
    fn estimate(&self, now: Instant) -> Option<Duration> {
        let (begun, _) = self.begun?;
        let each = (now - begun).checked_div(u32::try_from(self.finished).ok()?)?;
        each.checked_mul(u32::try_from(self.left).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_ends_when_the_work_that_it_has_seen_does() {
        let (mut work, begun) = (WatchedTasks::default(), Instant::now());
        let at = |secs| begun + Duration::from_secs(secs);
        let update = |work: &mut WatchedTasks, created, completed| {
            let states = [
                (TaskState::Created, created),
                (TaskState::Completed, completed),
            ];
            work.update(&states.into(), begun);
        };
        let left = |done, left, left_seconds| WorkLeft {
            done,
            left,
            left_seconds,
        };
        update(&mut work, 0, 7);
        assert!(!work.is_done(), "there was none yet");
        update(&mut work, 4, 7);
        assert_eq!(work.work_left(at(1)), left(0, 4, None));
        update(&mut work, 3, 8);
        assert_eq!(work.work_left(at(10)), left(1, 3, Some(30)));
        // Some records are purged.
        update(&mut work, 0, 5);
        assert!(work.is_done());
    }
}
