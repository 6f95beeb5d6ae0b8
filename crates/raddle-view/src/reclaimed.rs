//! Tasks that were reclaimed from workers that are gone.

use jiff::Timestamp;
use raddle_broker::{CompletionOutcome, Reclaimed};
use raddle_model::{TaskState, Tid};
use serde::Serialize;

/// A reclaimed task.
#[derive(Clone, Debug, Serialize)]
pub struct ReclaimedTask {
    /// The task.
    pub tid: Tid,
    /// The attempt that was lost.
    pub attempt: u32,
    /// The worker that had it.
    pub worker: Tid,
    /// The state of the task now: `created` if it waits for another attempt.
    pub state: TaskState,
    /// When the next attempt may begin.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_at: Option<Timestamp>,
}

impl ReclaimedTask {
    /// The record of a reclaimed task. `None` if another process was faster.
    pub fn new(reclaimed: &Reclaimed) -> Option<Self> {
        let (state, run_at) = match reclaimed.outcome {
            CompletionOutcome::Finished(state) => (state, None),
            CompletionOutcome::Retry(at) => (TaskState::Created, Some(at)),
            CompletionOutcome::Stale => return None,
        };
        Some(Self {
            tid: reclaimed.attempt_id.tid,
            attempt: reclaimed.attempt_id.attempt,
            worker: reclaimed.attempt_id.owner,
            state,
            run_at,
        })
    }
}
