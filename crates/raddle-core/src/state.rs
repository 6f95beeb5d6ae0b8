//! The states of a task and the steps between them.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::text::names;

/// Where a task stands. Terminal states are final and reached exactly once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum State {
    /// Stored and waiting: ready, delayed, or paused before its first or next attempt.
    Created = 0,
    /// Claimed by a worker; nothing of it has run yet.
    Spawning = 1,
    /// An attempt is running.
    Running = 2,
    /// The target ended well.
    Completed = 3,
    /// The target ended badly, and no attempt is left.
    Failed = 4,
    /// The last attempt ran into its time limit.
    Timeout = 5,
    /// Stopped on request before it could end by itself.
    Cancelled = 6,
    /// Killed on request.
    Killed = 7,
}

/// The text is not the name of a state.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{text}' is not a state: use one of created, spawning, running, completed, failed, timeout, cancelled, killed"
)]
pub struct ParseStateError {
    text: String,
}

impl State {
    /// Whether a worker has it.
    pub fn is_active(self) -> bool {
        matches!(self, Self::Spawning | Self::Running)
    }

    /// Whether nothing can follow.
    pub fn is_terminal(self) -> bool {
        self >= Self::Completed
    }

    /// Whether a task in this state may step to `next`.
    ///
    /// Back to `Created` means that an attempt is over and another may begin; straight from `Created` to a terminal
    /// state means that it was stopped, or given up, while waiting.
    pub fn may_become(self, next: Self) -> bool {
        use State::*;
        match self {
            Created => matches!(next, Spawning | Failed | Cancelled | Killed),
            Spawning => matches!(next, Created | Running | Failed | Timeout | Cancelled | Killed),
            Running => matches!(next, Created | Completed | Failed | Timeout | Cancelled | Killed),
            Completed | Failed | Timeout | Cancelled | Killed => false,
        }
    }

    /// The state with this number, as engines store it.
    pub fn from_u8(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }
}

names! {
    State {
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

impl FromStr for State {
    type Err = ParseStateError;

    fn from_str(text: &str) -> Result<Self, ParseStateError> {
        Self::ALL.into_iter().find(|s| s.as_str() == text).ok_or_else(|| ParseStateError { text: text.into() })
    }
}

#[cfg(test)]
mod tests;
