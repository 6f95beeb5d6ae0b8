//! The event log: one entry for each step of a task's lifecycle.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{TaskState, Tid, text::names};

/// One entry of `raddle.tasks.log`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskEvent {
    /// Id of the entry, from the same clock as task ids. The `created` event of a task has the id
    /// of the task.
    pub id: Tid,
    /// The task.
    pub tid: Tid,
    /// The kind of event.
    pub event: TaskEventKind,
    /// When it happened.
    pub at: Timestamp,
    /// The attempt; 0 before the first.
    pub attempt: u32,
    /// The worker that ran the attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<Tid>,
    /// Details for human readers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// Kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
#[repr(u8)]
pub enum TaskEventKind {
    /// The task was accepted and stored.
    Created = 0,
    /// A worker claimed the task.
    Spawning = 1,
    /// The target started.
    Running = 2,
    /// The task ended: the target succeeded.
    Completed = 3,
    /// The task ended: it failed.
    Failed = 4,
    /// The task ended: it ran past its timeout.
    Timeout = 5,
    /// The task ended: stopped on request.
    Cancelled = 6,
    /// The task ended: killed on request.
    Killed = 7,
    /// An attempt failed, and another will follow.
    Retrying = 8,
    /// The worker returned the attempt unfinished.
    Released = 9,
    /// The worker was lost; the task waits for another one.
    Reclaimed = 10,
    /// The task was paused on request.
    Paused = 11,
    /// The task was resumed.
    Resumed = 12,
    /// The broker refused a write of an attempt that is no longer the latest.
    StaleWrite = 13,
    /// A control message could not be parsed.
    ControlIgnored = 14,
    /// Some output of an attempt could not be stored.
    OutputLost = 15,
}

impl TaskEventKind {
    /// Returns the event with this number, as engines store it.
    pub fn from_u8(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// Returns whether this is the last event of a task. Only [`StaleWrite`](Self::StaleWrite) may
    /// follow it.
    pub fn is_terminal(self) -> bool {
        matches!(
            self,
            Self::Completed | Self::Failed | Self::Timeout | Self::Cancelled | Self::Killed
        )
    }
}

impl From<TaskState> for TaskEventKind {
    /// The first variants have the numbers of the states that they lead to.
    fn from(state: TaskState) -> Self {
        Self::ALL[state as usize]
    }
}

names! {
    TaskEventKind {
        Created => "created",
        Spawning => "spawning",
        Running => "running",
        Completed => "completed",
        Failed => "failed",
        Timeout => "timeout",
        Cancelled => "cancelled",
        Killed => "killed",
        Retrying => "retrying",
        Released => "released",
        Reclaimed => "reclaimed",
        Paused => "paused",
        Resumed => "resumed",
        StaleWrite => "stale_write",
        ControlIgnored => "control_ignored",
        OutputLost => "output_lost",
    }
}
