//! The event log: one entry for every step a task takes.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{State, Tid, text::names};

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
    /// The event with this number, as engines store it.
    pub fn from_u8(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// Whether it is the last event of a task, but for writes that are refused.
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Timeout | Self::Cancelled | Self::Killed)
    }
}

impl From<State> for EventKind {
    /// The first events have the numbers of the states that they lead to.
    fn from(state: State) -> Self {
        Self::ALL[state as usize]
    }
}

names! {
    EventKind {
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
