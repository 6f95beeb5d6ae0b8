//! The states of a task and the transitions between them.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::text::names;

/// The state of a task. Terminal states are final and reached exactly once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum TaskState {
    /// Stored and waiting: ready, delayed, or paused before its first or next attempt.
    Created = 0,
    /// Claimed by a worker; the target has not started yet.
    Spawning = 1,
    /// An attempt is running.
    Running = 2,
    /// The target succeeded.
    Completed = 3,
    /// The target failed, and no attempts are left.
    Failed = 4,
    /// The last attempt ran past its timeout.
    Timeout = 5,
    /// Stopped on request before it ended by itself.
    Cancelled = 6,
    /// Killed on request.
    Killed = 7,
}

/// The text is not the name of a state.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{text}' is not a state: use one of created, spawning, running, completed, failed, timeout, cancelled, killed"
)]
pub struct ParseTaskStateError {
    text: String,
}

impl TaskState {
    /// Returns whether a worker holds the task.
    pub fn is_active(self) -> bool {
        matches!(self, Self::Spawning | Self::Running)
    }

    /// Returns whether the state is final.
    pub fn is_terminal(self) -> bool {
        self >= Self::Completed
    }

    /// Returns whether a task in this state may change to `next`.
    ///
    /// A change back to `Created` means that an attempt ended and another may start. A change from
    /// `Created` to a terminal state means that the task was stopped or given up while it waited.
    pub fn may_become(self, next: Self) -> bool {
        use TaskState::*;
        match self {
            Created => matches!(next, Spawning | Failed | Cancelled | Killed),
            Spawning => matches!(
                next,
                Created | Running | Failed | Timeout | Cancelled | Killed
            ),
            Running => matches!(
                next,
                Created | Completed | Failed | Timeout | Cancelled | Killed
            ),
            Completed | Failed | Timeout | Cancelled | Killed => false,
        }
    }

    /// Returns the state with this number, as engines store it.
    pub fn from_u8(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }
}

names! {
    TaskState {
        Created => "created",
        Spawning => "spawning",
        Running => "running",
        Completed => "completed",
        Failed => "failed",
        Timeout => "timeout",
        Cancelled => "cancelled",
        Killed => "killed",
    }
}

impl FromStr for TaskState {
    type Err = ParseTaskStateError;

    fn from_str(text: &str) -> Result<Self, ParseTaskStateError> {
        Self::ALL
            .into_iter()
            .find(|s| s.as_str() == text)
            .ok_or_else(|| ParseTaskStateError { text: text.into() })
    }
}

#[cfg(test)]
mod tests;
