//! How an attempt ended.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::limits::LimitKind;

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Exit {
    /// The target ended by itself.
    Code {
        /// Its exit code; 0 is success.
        code: i32,
    },
    /// A signal that was not ours ended it.
    Signal {
        /// The signal's number.
        signal: i32,
    },
    /// It ran past the spec's `timeout`.
    Timeout,
    /// It, or its children, used more memory than allowed.
    OutOfMemory,
    /// It ran into another limit.
    Limit {
        /// Which one.
        limit: LimitKind,
    },
    /// The program does not exist.
    NotFound {
        /// What the system said, with the program's name.
        message: String,
    },
    /// The program exists and cannot be executed.
    NotExecutable {
        /// What the system said, with the program's name.
        message: String,
    },
    /// The attempt could not be set up as its spec asks: its folder is absent, or a name in it is none.
    SpawnFailed {
        /// What the system said.
        message: String,
    },
    /// A routine or handler said that it has failed.
    Error {
        /// What it said.
        message: String,
        /// Whether it would fail again, so that there is no use in another attempt.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        permanent: bool,
    },
    /// A routine panicked.
    Panicked {
        /// What it said.
        message: String,
        /// Where in its code.
        location: String,
    },
    /// A handler did not answer as handlers do.
    Garbled {
        /// What was wrong.
        message: String,
    },
    /// The worker has no handler that may run it, or cannot reach the engine that it is to run in. It goes back, and is charged nothing.
    Unfit {
        /// Why it may not.
        message: String,
    },
    /// The manager that it was asked of does not do such a thing, and would not at another time.
    Refused {
        /// Why it does not.
        message: String,
    },
    /// The system gave its worker no process, descriptor or memory to begin it with. It goes back, and is charged nothing.
    Starved {
        /// What the system said.
        message: String,
    },
    /// Its worker could not renew its lease in time, and stopped it before others would take over. It goes back, and is charged nothing
    /// unless that goes on and on.
    Lapsed,
    /// The worker that ran it is gone.
    Lost {
        /// What is known of it.
        message: String,
    },
    /// Nobody had taken it when its `lifetime` was over.
    Expired,
    /// A `STOP` reached it.
    Cancelled,
    /// A `KILL` reached it, or somebody killed its runner.
    Killed,
}

/// What an attempt used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// The largest resident size of any of its processes, or of the tree where that was sampled, in bytes.
    pub peak_rss_bytes: u64,
    /// Processor time in user mode, in microseconds.
    pub user_us: u64,
    /// Processor time in the kernel, in microseconds.
    pub system_us: u64,
}

/// The account of one attempt, as its executor gives it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// How it ended.
    pub exit: Exit,
    /// When the target began to run; absent when it never did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// When it was over.
    pub ended_at: Timestamp,
    /// What it used.
    #[serde(default)]
    pub usage: Usage,
    /// How many bytes it wrote to standard output.
    #[serde(default)]
    pub stdout_bytes: u64,
    /// How many bytes it wrote to standard error.
    #[serde(default)]
    pub stderr_bytes: u64,
    /// The value a routine or handler returned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<Value>,
}

impl Report {
    /// The account of an attempt that cannot give its own, or never ran.
    pub fn bare(exit: Exit, ended_at: Timestamp) -> Self {
        let (started_at, usage, value) = (None, Usage::default(), None);
        Self { exit, started_at, ended_at, usage, stdout_bytes: 0, stderr_bytes: 0, value }
    }
}

impl Exit {
    /// Whether the target did what it was asked to.
    pub fn is_success(&self) -> bool {
        *self == Self::Code { code: 0 }
    }

    /// The code a shell would show for it.
    pub fn shell_code(&self) -> i32 {
        match self {
            Self::Code { code } => *code,
            Self::Signal { signal } => 128 + signal,
            Self::Timeout | Self::Expired => 124,
            Self::Error { .. } | Self::Garbled { .. } => 1,
            Self::Refused { .. } => 2,
            Self::Panicked { .. } => 101,
            Self::NotFound { .. } => 127,
            Self::NotExecutable { .. } => 126,
            Self::SpawnFailed { .. } | Self::Unfit { .. } | Self::Starved { .. } | Self::Lapsed | Self::Lost { .. } => {
                125
            }
            Self::Cancelled => 130,
            Self::OutOfMemory | Self::Limit { .. } | Self::Killed => 137,
        }
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code { code } => write!(f, "exit code {code}"),
            Self::Signal { signal } => write!(f, "ended by signal {signal}"),
            Self::Timeout => f.write_str("ran past its timeout"),
            Self::OutOfMemory => f.write_str("used more memory than allowed"),
            Self::Limit { limit: LimitKind::MemoryMb } => f.write_str("ran into memory_mb"),
            Self::Limit { limit: LimitKind::MaxProcs } => f.write_str("ran into max_procs"),
            Self::NotFound { message }
            | Self::NotExecutable { message }
            | Self::SpawnFailed { message }
            | Self::Unfit { message }
            | Self::Starved { message } => f.write_str(message),
            Self::Lost { message } | Self::Error { message, .. } | Self::Garbled { message } => f.write_str(message),
            Self::Refused { message } => write!(f, "refused: {message}"),
            Self::Panicked { message, location } => write!(f, "panicked at {location}: {message}"),
            Self::Lapsed => f.write_str("the worker's lease ran out"),
            Self::Expired => f.write_str("expired before a worker took it"),
            Self::Cancelled => f.write_str("stopped on request"),
            Self::Killed => f.write_str("killed on request"),
        }
    }
}

#[cfg(test)]
mod tests;
