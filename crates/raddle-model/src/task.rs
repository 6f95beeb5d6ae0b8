//! A task as the broker reports it.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{AttemptReport, Progress, TaskSpec, TaskState, Tid, text::is_default};

/// The current record of a task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskView {
    /// Id of the task.
    pub tid: Tid,
    /// Spec of the task.
    pub spec: TaskSpec,
    /// State of the task.
    pub state: TaskState,
    /// Number of the latest attempt; 0 before the first.
    pub attempt: u32,
    /// Failed attempts.
    pub failures: u32,
    /// Attempts lost with their worker.
    pub losses: u32,
    /// Whether the task is paused on request.
    pub paused: bool,
    /// Whether the task is in the dead-letter queue.
    pub dead: bool,
    /// The earliest time of the next attempt, if that is not now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_at: Option<Timestamp>,
    /// The task that submitted this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Tid>,
    /// The worker that holds the task, or held it last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<Tid>,
    /// The process that runs the task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Progress that the current attempt has reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// How many tasks the current attempt has chained. They are submitted if it succeeds.
    #[serde(default, skip_serializing_if = "is_default")]
    pub chained: u64,
    /// When the task was submitted.
    pub created_at: Timestamp,
    /// When the current attempt was claimed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claimed_at: Option<Timestamp>,
    /// When the task reached its terminal state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Timestamp>,
    /// Report of the attempt that ended the task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub report: Option<AttemptReport>,
}

impl TaskView {
    /// Creates the record of a task that has just been submitted.
    pub fn new(tid: Tid, spec: TaskSpec, created_at: Timestamp) -> Self {
        Self {
            tid,
            spec,
            state: TaskState::Created,
            attempt: 0,
            failures: 0,
            losses: 0,
            paused: false,
            dead: false,
            run_at: None,
            parent: None,
            worker: None,
            pid: None,
            progress: None,
            chained: 0,
            created_at,
            claimed_at: None,
            finished_at: None,
            report: None,
        }
    }

    /// Returns the run time of the last attempt of a finished task, or of the running one so far.
    pub fn run_time(&self, now: Timestamp) -> Option<Duration> {
        let (from, to) = match &self.report {
            Some(report) => (report.started_at?, report.ended_at),
            None => (self.claimed_at?, now),
        };
        Duration::try_from(to.duration_since(from)).ok()
    }
}
