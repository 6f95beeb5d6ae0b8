//! Operations: one action on many tasks, in portions, that any process can go on with.
//!
//! The selection is frozen: an operation touches only tasks that exist and have their state when it
//! was requested. [`OperationView::cursor`] is how far it has come, newest task first. An engine
//! moves it in the transaction that changes the tasks, so a killed process neither loses nor
//! repeats an action.

use jiff::Timestamp;
use raddle_model::{TaskEventKind, Tid, query::TaskQuery, spec::InvalidSpec};
use serde::{Deserialize, Serialize};

use crate::{TaskFilter, request::check_queue};

/// The number of operations whose records are kept, besides those that go on.
pub const OPERATIONS_KEPT: u32 = 1000;
/// The most tasks that a selection by ids may have. More are selected by a query.
pub const MAX_SELECTED: usize = 1000;
/// The longest reason or name of a requester, in bytes.
const MAX_NOTE_BYTES: usize = 1024;

/// The action of an operation on each task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum OperationAction {
    /// Submits the specs of finished tasks again. A dead letter leaves the dead-letter queue.
    Retry,
    /// Stops tasks that are not finished.
    Stop,
    /// Kills tasks that are not finished.
    Kill,
    /// Deletes the records of finished tasks.
    Delete,
    /// Moves waiting tasks to another queue.
    Move {
        /// The queue.
        queue: String,
    },
}

/// The tasks of an operation. Services are never selected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OperationSelection {
    /// These tasks, at most [`MAX_SELECTED`].
    Tasks(Vec<Tid>),
    /// The tasks that match a query.
    Query(TaskQuery),
}

/// An operation to start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewOperation {
    /// The action.
    pub action: OperationAction,
    /// The tasks.
    pub selection: OperationSelection,
    /// The last event that the requester had seen. Tasks that were submitted or have changed their
    /// state since are not touched.
    pub as_of: Tid,
    /// How many tasks the requester expects it to change, for its records.
    pub expected: Option<u64>,
    /// Why, for its records.
    pub reason: String,
    /// The name of the requester, for its records.
    pub by: String,
}

/// Whether an operation goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OperationState {
    /// Some tasks were not looked at yet.
    Running,
    /// All tasks were looked at.
    Completed,
    /// It was cancelled. Its changes stay.
    Cancelled,
}

/// An operation and its progress.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperationView {
    /// Its id, from the same sequence as task ids.
    pub id: Tid,
    /// The request.
    #[serde(flatten)]
    pub request: NewOperation,
    /// Whether it goes on.
    pub state: OperationState,
    /// Tasks with this id and newer ones were looked at.
    pub cursor: Tid,
    /// The number of tasks that were looked at.
    pub looked_at: u64,
    /// Tasks to which the action was applied.
    pub done: u64,
    /// Tasks of the selection that have changed since it was requested, and were left alone.
    pub changed: u64,
    /// Tasks to which the action cannot be applied.
    pub refused: u64,
    /// Why it could not be applied to the last of these.
    pub last_refusal: Option<String>,
    /// When it was started.
    pub started_at: Timestamp,
    /// When it was last advanced.
    pub updated_at: Timestamp,
}

/// The outcome for one task of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperationStep {
    /// The action was applied.
    Done,
    /// The task has changed since the operation was requested, or is gone.
    Changed,
    /// The action cannot be applied, for this reason.
    Refused(String),
}

impl NewOperation {
    /// Checks what all engines check.
    pub fn validate(&self) -> Result<(), InvalidSpec> {
        let invalid = |path: &'static str, reason: &str| {
            Err(InvalidSpec {
                path: path.into(),
                reason: reason.into(),
            })
        };
        match &self.selection {
            OperationSelection::Tasks(tids) if tids.is_empty() => {
                return invalid("selection", "no task is selected: name at least one");
            }
            OperationSelection::Tasks(tids) if tids.len() > MAX_SELECTED => {
                return invalid(
                    "selection",
                    "at most 1000 tasks can be named: select more by a query",
                );
            }
            _ => {}
        }
        if let OperationAction::Move { queue } = &self.action {
            check_queue(queue.clone())?;
        }
        for (path, note) in [("reason", &self.reason), ("by", &self.by)] {
            if note.len() > MAX_NOTE_BYTES {
                return invalid(path, "it is longer than 1024 bytes: shorten it");
            }
        }
        Ok(())
    }
}

impl OperationView {
    /// The operation before its first portion.
    pub fn new(id: Tid, mut request: NewOperation) -> Self {
        let started_at = crate::summary::submitted_at(id);
        // A later id would include tasks that are submitted from now on.
        request.as_of = request.as_of.min(id);
        request.selection = match request.selection {
            OperationSelection::Tasks(mut tids) => {
                tids.sort_unstable_by(|a, b| b.cmp(a));
                tids.dedup();
                OperationSelection::Tasks(tids)
            }
            OperationSelection::Query(query) => {
                OperationSelection::Query(query.fix_times(started_at))
            }
        };
        Self {
            id,
            // Below any task that was submitted later, above `as_of`.
            cursor: Tid::from_u64(request.as_of.as_u64() + 1).unwrap_or(request.as_of),
            request,
            state: OperationState::Running,
            looked_at: 0,
            done: 0,
            changed: 0,
            refused: 0,
            last_refusal: None,
            started_at,
            updated_at: started_at,
        }
    }

    /// The filter for the next tasks, of which at most `max` are looked at.
    pub fn filter(&self, max: u32) -> TaskFilter {
        let filter = TaskFilter {
            before: Some(self.cursor),
            limit: max,
            max_examined: Some(max),
            ..TaskFilter::default()
        };
        match &self.request.selection {
            OperationSelection::Tasks(tids) => TaskFilter {
                among: Some(tids.clone()),
                ..filter
            },
            OperationSelection::Query(query) => TaskFilter {
                query: query.clone(),
                ..filter
            },
        }
    }

    /// Counts one task.
    pub fn count(&mut self, step: OperationStep) {
        match step {
            OperationStep::Done => self.done += 1,
            OperationStep::Changed => self.changed += 1,
            OperationStep::Refused(reason) => {
                self.refused += 1;
                self.last_refusal = Some(reason);
            }
        }
    }

    /// Records that `looked_at` further tasks were looked at, down to `next`; `None` if there are
    /// no more.
    pub fn advance(&mut self, looked_at: u64, next: Option<Tid>, now: Timestamp) {
        self.looked_at += looked_at;
        self.updated_at = now;
        match next {
            Some(next) => self.cursor = next,
            None => self.state = OperationState::Completed,
        }
    }
}

/// Whether an event changes the state of its task. A task whose last such event is newer than
/// [`NewOperation::as_of`] is left alone.
pub fn changes_state(event: TaskEventKind) -> bool {
    !matches!(
        event,
        TaskEventKind::StaleWrite | TaskEventKind::ControlIgnored | TaskEventKind::OutputLost
    )
}
