//! Errors of brokers.

use std::{
    borrow::Cow,
    io,
    path::{Path, PathBuf},
};

use raddle_model::{QueueName, TaskState, Tid, control::ParseControlError, spec::InvalidSpec};
use serde::{Deserialize, Serialize};

use crate::{
    AttemptId,
    chain::{MAX_CHAINED, MAX_CHAINED_BYTES},
};

/// The result of a broker call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a broker call failed. Serialisable, so that it can be sent to another process.
#[derive(Debug, Clone, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The task was refused before it was stored.
    #[error(transparent)]
    Invalid(#[from] InvalidSpec),
    /// The task does not exist.
    #[error("no task {0} here: 'raddle task list' shows those there are")]
    NotFound(Tid),
    /// The task is finished.
    #[error("task {0} is {1} already")]
    Finished(Tid, TaskState),
    /// The task does not wait in a queue.
    #[error("task {0} is {1}: only a waiting task can be moved")]
    NotWaiting(Tid, TaskState),
    /// The task is not finished.
    #[error("task {0} is {1}: only a finished task can be submitted again")]
    Unfinished(Tid, TaskState),
    /// The task is not, or no longer, in the dead-letter queue.
    #[error("task {0} is not in the dead-letter queue: it may have been retried or purged already")]
    NotDead(Tid),
    /// The task cannot be submitted again while an unfinished one has its unique key.
    #[error(
        "task {tid} cannot be submitted again while task {holder} has its unique key: wait for that one, or stop it"
    )]
    KeyTaken {
        /// The finished task.
        tid: Tid,
        /// The unfinished one.
        holder: Tid,
    },
    /// The operation does not exist.
    #[error("no operation {0} here: 'raddle operation list' shows those there are")]
    NoOperation(Tid),
    /// The attempt is stale.
    #[error("{0} is over or was replaced: nothing was chained")]
    Superseded(AttemptId),
    /// The attempt would exceed the limits of chaining.
    #[error(
        "{0} would chain more than {MAX_CHAINED} tasks, or {mib} MiB of them: chain one that submits the others",
        mib = MAX_CHAINED_BYTES >> 20
    )]
    ChainFull(AttemptId),
    /// The store has lost tasks that the attempt had chained before.
    #[error("the tasks that {0} had chained are lost: it has to run again")]
    ChainLost(AttemptId),
    /// The queue shows the broker's own records.
    #[error("{0} shows records of the broker: it can be peeked and watched, not {1}")]
    View(QueueName, Cow<'static, str>),
    /// Not a control message.
    #[error(transparent)]
    Control(#[from] ParseControlError),
    /// Messages to control and request queues take effect when they are written, and so cannot be
    /// moved.
    #[error("{0} takes messages only as they are written: read them, and write them there")]
    ControlQueue(QueueName),
    /// The file is not a Raddle database.
    #[error("{path} is not a Raddle database ({found}): name another file, or move this one away")]
    Foreign {
        /// The file.
        path: PathBuf,
        /// The actual state.
        found: String,
    },
    /// The file was written by a newer version.
    #[error(
        "{path} was written by a newer Raddle (format {found}, this one knows {known}): upgrade this raddle"
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u32,
        /// The newest format this version knows.
        known: u32,
    },
    /// The file is damaged.
    #[error("{path} is damaged ({found}): restore it from a backup, or move it away to start anew")]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// The error of the engine.
        found: String,
    },
    /// The WAL exists without its database.
    #[error(
        "{path} is missing, but its WAL exists: restore the file, or remove {path}-wal and {path}-shm to start anew without their data"
    )]
    LogAlone {
        /// The file.
        path: PathBuf,
    },
    /// The disk is full.
    #[error("no space left to write {path}: free some, nothing that was accepted is lost")]
    Full {
        /// The file.
        path: PathBuf,
    },
    /// The file or directory is not writable.
    #[error("cannot write {path}: {reason}")]
    ReadOnly {
        /// The file or directory.
        path: PathBuf,
        /// The error of the system.
        reason: String,
    },
    /// Another process has held the database for too long.
    #[error("{path} has been locked for {secs} s{holder}: is that process stopped?")]
    Locked {
        /// The file.
        path: PathBuf,
        /// How long the call has waited.
        secs: u64,
        /// The holder, if known.
        holder: String,
    },
    /// The engine failed in another way, or a file beside the database did.
    #[error("{path}: {reason}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The error. A text, because one failed commit is reported to every call in its group.
        reason: String,
    },
    /// A resource limit of the system.
    #[error(
        "the system provides no {what} ({reason}): raise the limit, 'ulimit -n' for files and 'ulimit -u' for processes, or run less at once"
    )]
    Starved {
        /// The resource.
        what: Cow<'static, str>,
        /// The error of the system.
        reason: String,
    },
    /// The write may or may not be durable.
    #[error(
        "{path} could not be synced ({reason}): the write may or may not have succeeded, so check before you repeat it"
    )]
    Unsynced {
        /// The database.
        path: PathBuf,
        /// The error of the system.
        reason: String,
    },
    /// A stored record cannot be read.
    #[error("the record of task {tid} cannot be read: {reason}")]
    Record {
        /// The task.
        tid: Tid,
        /// The reason.
        reason: String,
    },
    /// The process that serves the broker is gone. The call was not performed, or is safe to
    /// repeat.
    #[error("no answer from the agent at {path}: {reason}")]
    AgentGone {
        /// Its socket.
        path: PathBuf,
        /// The cause.
        reason: String,
    },
    /// The server, or the process that serves the broker, went away before it replied to a write.
    #[error(
        "{place} did not confirm that it {what} ({reason}): check before you repeat it, or give tasks a unique_key"
    )]
    Unanswered {
        /// Its address.
        place: String,
        /// The operation whose outcome is unknown.
        what: Cow<'static, str>,
        /// The cause.
        reason: String,
    },
    /// The process that serves the broker refuses this client or this call.
    #[error("the agent at {path} cannot be used: {reason}")]
    AgentRefused {
        /// Its socket.
        path: PathBuf,
        /// The reason, and what to do.
        reason: String,
    },
    /// The broker cannot be served at this path.
    #[error("cannot serve at {path}: {reason}")]
    Socket {
        /// The path of the socket.
        path: PathBuf,
        /// The reason, and what to do.
        reason: String,
    },
    /// The server is not reachable.
    #[error("cannot reach {place} ({reason}): is the server running at this address?")]
    Unreachable {
        /// Its address.
        place: String,
        /// The cause.
        reason: String,
        /// Whether it is down for all clients.
        down: bool,
    },
    /// The server has stored the write, but not on the replicas or disk that the URL requires.
    #[error(
        "{place} has stored it, but {reason} within ?give_up_after=: it is lost only if that server is lost, so \
         check before you repeat it"
    )]
    Unconfirmed {
        /// Its address.
        place: String,
        /// The missing item.
        reason: String,
    },
    /// The server is not fit to store tasks.
    #[error("{place} {reason}: {fix}")]
    Refused {
        /// Its address.
        place: String,
        /// The problem.
        reason: String,
        /// The fix.
        fix: String,
    },
    /// The server is out of memory.
    #[error(
        "{place} has no memory left: raise its limit ('redis-cli CONFIG SET maxmemory 2gb'), nothing that was accepted is lost"
    )]
    OutOfMemory {
        /// Its address.
        place: String,
    },
    /// The server refuses writes because it cannot persist them.
    #[error(
        "{place} cannot write to its disk: free some space there, and check its log; nothing that was accepted is lost ({reason})"
    )]
    Unwritable {
        /// Its address.
        place: String,
        /// Its error.
        reason: String,
    },
    /// Another program uses the keys of this namespace.
    #[error("another program uses the same keys at {place}: choose another ?namespace=")]
    Taken {
        /// Its address.
        place: String,
    },
    /// Another error of the server.
    #[error("{place}: {reason}")]
    Server {
        /// Its address.
        place: String,
        /// Its error.
        reason: String,
    },
    /// The broker was closed.
    #[error("the broker was closed")]
    Closed,
}

impl Error {
    /// Maps an I/O error.
    pub fn io(path: &Path, error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Self::Full { path: path.into() }
            }
            io::ErrorKind::FileTooLarge => Self::Io {
                path: path.into(),
                reason: format!("{error}: raise the limit on file sizes, 'ulimit -f'"),
            },
            _ if is_resource_exhaustion(error) => Self::Starved {
                what: "open file".into(),
                reason: error.to_string(),
            },
            _ => Self::Io {
                path: path.into(),
                reason: error.to_string(),
            },
        }
    }

    /// The error when a thread cannot be started.
    pub fn no_thread(error: &io::Error) -> Self {
        Self::Starved {
            what: "thread".into(),
            reason: error.to_string(),
        }
    }

    /// Whether the same call may succeed later without intervention, and is safe to repeat.
    pub fn is_retryable(&self) -> bool {
        matches!(
            self,
            Self::Locked { .. }
                | Self::Full { .. }
                | Self::Starved { .. }
                | Self::AgentGone { .. }
                | Self::Unreachable { .. }
                | Self::OutOfMemory { .. }
                | Self::Unwritable { .. }
        )
    }

    /// Whether the broker has no space for new data. Accepted data is safe.
    pub fn is_out_of_space(&self) -> bool {
        matches!(
            self,
            Self::Full { .. } | Self::OutOfMemory { .. } | Self::Unwritable { .. }
        )
    }

    /// Whether the request is invalid, as opposed to a failure of the broker.
    pub fn is_callers(&self) -> bool {
        matches!(
            self,
            Self::Invalid(_)
                | Self::NotFound(_)
                | Self::Finished(..)
                | Self::Unfinished(..)
                | Self::NotDead(_)
                | Self::NoOperation(_)
                | Self::NotWaiting(..)
                | Self::KeyTaken { .. }
                | Self::Superseded(_)
                | Self::ChainFull(_)
                | Self::View(..)
                | Self::Control(_)
                | Self::ControlQueue(_)
                | Self::Socket { .. }
        )
    }
}

/// Whether the system has run out of descriptors, memory or threads.
pub fn is_resource_exhaustion(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::EAGAIN)
    )
}
