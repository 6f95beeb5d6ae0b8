//! A task as the broker shows it.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{Progress, Report, Spec, State, Tid, text::is_default};

/// A task with all that is known of it now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskView {
    /// Its id.
    pub tid: Tid,
    /// What it is to do.
    pub spec: Spec,
    /// Where it stands.
    pub state: State,
    /// The number of its latest attempt; 0 before the first.
    pub attempt: u32,
    /// Attempts that ended badly.
    pub failures: u32,
    /// Attempts lost with their worker.
    pub losses: u32,
    /// Whether it is held back on request.
    pub paused: bool,
    /// Whether it stands in the dead-letter queue.
    pub dead: bool,
    /// The earliest time of its next attempt, when that is not now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_at: Option<Timestamp>,
    /// The task that submitted it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Tid>,
    /// The worker that has it, or had it last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<Tid>,
    /// The process that runs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// How far the present attempt says that it has come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// How many tasks its present attempt has chained: they are submitted if it succeeds.
    #[serde(default, skip_serializing_if = "is_default")]
    pub chained: u64,
    /// When it was submitted.
    pub created_at: Timestamp,
    /// When the present attempt was claimed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claimed_at: Option<Timestamp>,
    /// When it reached its terminal state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Timestamp>,
    /// The account of the attempt that ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub report: Option<Report>,
}

impl TaskView {
    /// A task as it is when it has just been submitted.
    pub fn new(tid: Tid, spec: Spec, created_at: Timestamp) -> Self {
        Self {
            tid,
            spec,
            state: State::Created,
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
}
