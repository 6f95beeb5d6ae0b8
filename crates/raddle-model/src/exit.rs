//! How an attempt ended, and the report about it.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::limits::LimitKind;

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum ExitStatus {
    /// The target exited by itself.
    Code {
        /// Exit code; 0 is success.
        code: i32,
    },
    /// A signal that Raddle did not send ended the target.
    Signal {
        /// The signal number.
        signal: i32,
    },
    /// The target ran past the spec's `timeout`.
    Timeout,
    /// The target or its children used more memory than allowed.
    OutOfMemory,
    /// The target hit another resource limit.
    Limit {
        /// The limit.
        limit: LimitKind,
    },
    /// The program does not exist.
    NotFound {
        /// The operating system's error, with the name of the program.
        message: String,
    },
    /// The program exists but cannot be executed.
    NotExecutable {
        /// The operating system's error, with the name of the program.
        message: String,
    },
    /// The attempt could not be set up as its spec asks: the working directory is missing, or a
    /// name in the spec is invalid.
    SpawnFailed {
        /// The operating system's error.
        message: String,
    },
    /// A routine or handler reported a failure.
    Error {
        /// The reported message.
        message: String,
        /// Whether another attempt would fail as well, so that the task is not retried.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        permanent: bool,
        /// It is no failure: the routine asked to run again, at the earliest after this time in
        /// milliseconds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        retry_after_ms: Option<u64>,
    },
    /// A routine panicked.
    Panicked {
        /// The panic message.
        message: String,
        /// Source location of the panic.
        location: String,
    },
    /// A handler violated the reply protocol.
    ProtocolError {
        /// The violation.
        message: String,
    },
    /// The worker has no handler that may run the task, or cannot reach the engine that must run
    /// it. The task is released, and no attempt is charged.
    NoHandler {
        /// The reason.
        message: String,
    },
    /// The manager does not serve this request and never will.
    Rejected {
        /// The reason.
        message: String,
    },
    /// The operating system gave the worker no process, descriptor or memory to start the task. The
    /// task is released, and no attempt is charged.
    ResourceExhausted {
        /// The operating system's error.
        message: String,
    },
    /// The worker could not renew the lease in time, and stopped the attempt before another worker
    /// could claim the task. The task is released. No attempt is charged unless this happens many
    /// times in a row.
    LeaseExpired,
    /// The worker that ran the attempt died or is unreachable.
    WorkerLost {
        /// Known details of the loss.
        message: String,
    },
    /// No worker claimed the task within its `lifetime`.
    Expired,
    /// A `STOP` reached the task.
    Cancelled,
    /// A `KILL` reached the task, or its runner was killed from outside.
    Killed,
}

/// Resources that an attempt used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResourceUsage {
    /// Peak resident set size in bytes: of the largest process, or of the whole tree where that was
    /// sampled.
    pub peak_rss_bytes: u64,
    /// CPU time in user mode, in microseconds.
    pub user_us: u64,
    /// CPU time in kernel mode, in microseconds.
    pub system_us: u64,
}

/// The executor's report of one attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AttemptReport {
    /// How the attempt ended.
    pub exit: ExitStatus,
    /// When the target started; absent if it never did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// When the attempt ended.
    pub ended_at: Timestamp,
    /// Resources that the attempt used.
    #[serde(default)]
    pub usage: ResourceUsage,
    /// Bytes written to standard output.
    #[serde(default)]
    pub stdout_bytes: u64,
    /// Bytes written to standard error.
    #[serde(default)]
    pub stderr_bytes: u64,
    /// The value that a routine or handler returned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<Value>,
}

impl AttemptReport {
    /// Creates the report of an attempt that never ran, or whose executor cannot report.
    pub fn bare(exit: ExitStatus, ended_at: Timestamp) -> Self {
        let (started_at, usage, value) = (None, ResourceUsage::default(), None);
        Self {
            exit,
            started_at,
            ended_at,
            usage,
            stdout_bytes: 0,
            stderr_bytes: 0,
            value,
        }
    }
}

impl ExitStatus {
    /// The names of all kinds.
    pub const KINDS: [&str; 19] = [
        "code",
        "signal",
        "timeout",
        "out_of_memory",
        "limit",
        "not_found",
        "not_executable",
        "spawn_failed",
        "error",
        "panicked",
        "protocol_error",
        "no_handler",
        "rejected",
        "resource_exhausted",
        "lease_expired",
        "worker_lost",
        "expired",
        "cancelled",
        "killed",
    ];

    /// Returns the name of the kind, as in JSON.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Code { .. } => "code",
            Self::Signal { .. } => "signal",
            Self::Timeout => "timeout",
            Self::OutOfMemory => "out_of_memory",
            Self::Limit { .. } => "limit",
            Self::NotFound { .. } => "not_found",
            Self::NotExecutable { .. } => "not_executable",
            Self::SpawnFailed { .. } => "spawn_failed",
            Self::Error { .. } => "error",
            Self::Panicked { .. } => "panicked",
            Self::ProtocolError { .. } => "protocol_error",
            Self::NoHandler { .. } => "no_handler",
            Self::Rejected { .. } => "rejected",
            Self::ResourceExhausted { .. } => "resource_exhausted",
            Self::LeaseExpired => "lease_expired",
            Self::WorkerLost { .. } => "worker_lost",
            Self::Expired => "expired",
            Self::Cancelled => "cancelled",
            Self::Killed => "killed",
        }
    }

    /// Returns whether the target succeeded.
    pub fn is_success(&self) -> bool {
        *self == Self::Code { code: 0 }
    }

    /// Returns the exit code that a shell would show.
    pub fn shell_code(&self) -> i32 {
        match self {
            Self::Code { code } => *code,
            Self::Signal { signal } => 128 + signal,
            Self::Timeout | Self::Expired => 124,
            Self::Error { .. } | Self::ProtocolError { .. } => 1,
            Self::Rejected { .. } => 2,
            Self::Panicked { .. } => 101,
            Self::NotFound { .. } => 127,
            Self::NotExecutable { .. } => 126,
            Self::SpawnFailed { .. }
            | Self::NoHandler { .. }
            | Self::ResourceExhausted { .. }
            | Self::LeaseExpired
            | Self::WorkerLost { .. } => 125,
            Self::Cancelled => 130,
            Self::OutOfMemory | Self::Limit { .. } | Self::Killed => 137,
        }
    }
}

impl fmt::Display for ExitStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code { code } => write!(f, "exit code {code}"),
            Self::Signal { signal } => write!(f, "ended by signal {signal}"),
            Self::Timeout => f.write_str("ran past its timeout"),
            Self::OutOfMemory => f.write_str("used more memory than allowed"),
            Self::Limit {
                limit: LimitKind::MemoryMb,
            } => f.write_str("ran into memory_mb"),
            Self::Limit {
                limit: LimitKind::MaxProcs,
            } => f.write_str("ran into max_procs"),
            Self::NotFound { message }
            | Self::NotExecutable { message }
            | Self::SpawnFailed { message }
            | Self::NoHandler { message }
            | Self::ResourceExhausted { message } => f.write_str(message),
            Self::WorkerLost { message }
            | Self::Error { message, .. }
            | Self::ProtocolError { message } => f.write_str(message),
            Self::Rejected { message } => write!(f, "refused: {message}"),
            Self::Panicked { message, location } => write!(f, "panicked at {location}: {message}"),
            Self::LeaseExpired => f.write_str("the worker's lease ran out"),
            Self::Expired => f.write_str("expired before a worker took it"),
            Self::Cancelled => f.write_str("stopped on request"),
            Self::Killed => f.write_str("killed on request"),
        }
    }
}

#[cfg(test)]
mod tests;
