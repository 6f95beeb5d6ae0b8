//! The event log: one entry for every step a task takes.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{State, Tid};

/// One entry of `raddle.tasks.log`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// The entry's own id, from the same clock as task ids: a task's `created` event has the id of the task.
    pub id: Tid,
    /// The task it is about.
    pub tid: Tid,
    /// What happened.
    pub event: EventKind,
    /// When.
    pub at: Timestamp,
    /// The attempt it happened to; 0 before the first.
    pub attempt: u32,
    /// The worker it happened on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<Tid>,
    /// More about it, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// What happened to a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
#[repr(u8)]
pub enum EventKind {
    /// Accepted and stored.
    Created = 0,
    /// Claimed by a worker.
    Spawning = 1,
    /// The target began.
    Running = 2,
    /// The task is over: the target ended well.
    Completed = 3,
    /// The task is over: it ended badly.
    Failed = 4,
    /// The task is over: it took too long.
    Timeout = 5,
    /// The task is over: stopped on request.
    Cancelled = 6,
    /// The task is over: killed on request.
    Killed = 7,
    /// An attempt ended badly, and another will follow.
    Retrying = 8,
    /// The attempt's worker gave it back unfinished.
    Released = 9,
    /// The attempt's worker is gone; the task waits for another.
    Reclaimed = 10,
    /// Held back on request.
    Paused = 11,
    /// No longer held back.
    Resumed = 12,
    /// A write of an attempt that is no longer the latest was refused.
    StaleWrite = 13,
    /// A control message could not be understood.
    ControlIgnored = 14,
    /// Some of what an attempt wrote could not be kept.
    OutputLost = 15,
}

impl EventKind {
    const ALL: [Self; 16] = [
        Self::Created,
        Self::Spawning,
        Self::Running,
        Self::Completed,
        Self::Failed,
        Self::Timeout,
        Self::Cancelled,
        Self::Killed,
        Self::Retrying,
        Self::Released,
        Self::Reclaimed,
        Self::Paused,
        Self::Resumed,
        Self::StaleWrite,
        Self::ControlIgnored,
        Self::OutputLost,
    ];

    /// The event with this number, as engines store it.
    pub fn from_u8(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// The snake-case name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Spawning => "spawning",
            Self::Running => "running",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Timeout => "timeout",
            Self::Cancelled => "cancelled",
            Self::Killed => "killed",
            Self::Retrying => "retrying",
            Self::Released => "released",
            Self::Reclaimed => "reclaimed",
            Self::Paused => "paused",
            Self::Resumed => "resumed",
            Self::StaleWrite => "stale_write",
            Self::ControlIgnored => "control_ignored",
            Self::OutputLost => "output_lost",
        }
    }

    /// Whether it is the last event of a task, but for writes that are refused.
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Timeout | Self::Cancelled | Self::Killed)
    }
}

impl From<State> for EventKind {
    fn from(state: State) -> Self {
        match state {
            State::Created => Self::Created,
            State::Spawning => Self::Spawning,
            State::Running => Self::Running,
            State::Completed => Self::Completed,
            State::Failed => Self::Failed,
            State::Timeout => Self::Timeout,
            State::Cancelled => Self::Cancelled,
            State::Killed => Self::Killed,
        }
    }
}

impl fmt::Display for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
