//! What can go wrong with a broker.

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

/// The result of asking a broker.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a broker did not do what it was asked to. It can be sent to whoever asked from another process.
#[derive(Debug, Clone, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The task was refused before it was stored.
    #[error(transparent)]
    Invalid(#[from] InvalidSpec),
    /// No such task here.
    #[error("no task {0} here: 'raddle task list' shows those there are")]
    NotFound(Tid),
    /// The task is over.
    #[error("task {0} is {1} already")]
    Finished(Tid, TaskState),
    /// The task is not over yet.
    #[error("task {0} is {1}: only a finished task can be submitted again")]
    Unfinished(Tid, TaskState),
    /// The task does not stand in the dead-letter queue, or does no longer.
    #[error("task {0} is no dead letter: somebody else may have seen to it")]
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
    /// The attempt is not the latest of its task any more, or is over.
    #[error("{0} is over, or another has taken its place: nothing was chained")]
    Superseded(AttemptId),
    /// The attempt has chained as much as one may.
    #[error(
        "{0} would chain more than {MAX_CHAINED} tasks, or {mib} MiB of them: chain one that submits the others",
        mib = MAX_CHAINED_BYTES >> 20
    )]
    ChainFull(AttemptId),
    /// The store has lost what the attempt had chained before.
    #[error("what {0} had chained is not there any more: it has to run again")]
    ChainLost(AttemptId),
    /// The queue shows the broker's own records.
    #[error("{0} shows records of the broker: it can be peeked and watched, not {1}")]
    View(QueueName, Cow<'static, str>),
    /// A control queue was sent what is not a control message.
    #[error(transparent)]
    Control(#[from] ParseControlError),
    /// Control words and requests are obeyed or passed on as they are written, and so cannot be moved.
    #[error("{0} takes messages only as they are written: read them, and write them there")]
    ControlQueue(QueueName),
    /// The file is something else.
    #[error("{path} is not a Raddle database ({found}): name another file, or move this one away")]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What it is.
        found: String,
    },
    /// The file was made by a later version.
    #[error(
        "{path} was made by a newer Raddle (format {found}, this one knows {known}): upgrade this raddle"
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
        /// What the engine said.
        found: String,
    },
    /// The file is gone, and what was written to it last is not.
    #[error(
        "{path} is gone, and its log is not: put it back, or remove {path}-wal and {path}-shm as well, to start anew without what they hold"
    )]
    LogAlone {
        /// The file.
        path: PathBuf,
    },
    /// There is no room.
    #[error("no space left to write {path}: free some, nothing that was accepted is lost")]
    Full {
        /// The file.
        path: PathBuf,
    },
    /// The place cannot be written to.
    #[error("cannot write {path}: {reason}")]
    ReadOnly {
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        reason: String,
    },
    /// Another process has held the database for too long.
    #[error("{path} has been locked for {secs} s{holder}: is that process stopped?")]
    Locked {
        /// The file.
        path: PathBuf,
        /// For how long.
        secs: u64,
        /// Who holds it, if that is known.
        holder: String,
    },
    /// The engine failed in another way, or a file beside the database did.
    #[error("{path}: {reason}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the engine or the system said. A text, because one failed commit is reported to every call that was part of it.
        reason: String,
    },
    /// The system gives this process no more of something.
    #[error(
        "the system gives no {what} ({reason}): raise the limit, 'ulimit -n' for files and 'ulimit -u' for processes, or run less at once"
    )]
    Starved {
        /// Of what.
        what: Cow<'static, str>,
        /// What the system said.
        reason: String,
    },
    /// It is not known whether it was written, and will last.
    #[error(
        "{path} could not be synced ({reason}): what was asked for may be there or not, so look before you repeat it"
    )]
    Unsynced {
        /// The database.
        path: PathBuf,
        /// What the system said.
        reason: String,
    },
    /// A stored record cannot be understood.
    #[error("the record of task {tid} cannot be read: {reason}")]
    Record {
        /// The task.
        tid: Tid,
        /// Why.
        reason: String,
    },
    /// The process that serves the broker cannot be reached. What it was asked to was not done, or can safely be asked for again.
    #[error("no answer from the agent at {path}: {reason}")]
    AgentGone {
        /// Its socket.
        path: PathBuf,
        /// What is known of it.
        reason: String,
    },
    /// A server, or the process that serves the broker, was asked to store something, and went away before it answered.
    #[error(
        "{place} did not say whether it {what} ({reason}): look before you repeat it, or give tasks a unique_key"
    )]
    Unanswered {
        /// Where it is, or was.
        place: String,
        /// What may or may not have been done.
        what: Cow<'static, str>,
        /// What is known of it.
        reason: String,
    },
    /// The process that serves the broker does not talk to this one, or not about this.
    #[error("the agent at {path} cannot be used: {reason}")]
    AgentRefused {
        /// Its socket.
        path: PathBuf,
        /// Why, and what to do.
        reason: String,
    },
    /// A broker cannot be served under this name.
    #[error("cannot serve at {path}: {reason}")]
    Socket {
        /// Where the socket was to be.
        path: PathBuf,
        /// Why, and what to do.
        reason: String,
    },
    /// The server is not there, or does not answer.
    #[error("cannot reach {place} ({reason}): is the server running, and is this where it is?")]
    Unreachable {
        /// Where it should be.
        place: String,
        /// What was found there.
        reason: String,
        /// Whether it is known that nobody else reaches it either.
        down: bool,
    },
    /// The server has stored what it was given, and nobody else has, though the URL asks for that.
    #[error(
        "{place} has stored it, but {reason} after all the time that ?give_up_after= allows: it is there unless that server is lost, so \
         look before you repeat it"
    )]
    Unconfirmed {
        /// Where it is.
        place: String,
        /// Who else has it.
        reason: String,
    },
    /// The server is there, and is not one to keep tasks on.
    #[error("{place} {reason}: {fix}")]
    Refused {
        /// Where it is.
        place: String,
        /// What is wrong with it.
        reason: String,
        /// What to do about it.
        fix: String,
    },
    /// The server has no memory left.
    #[error(
        "{place} has no memory left: raise its limit ('redis-cli CONFIG SET maxmemory 2gb'), nothing that was accepted is lost"
    )]
    OutOfMemory {
        /// Where it is.
        place: String,
    },
    /// The server takes nothing more, because it could not keep it.
    #[error(
        "{place} cannot write to its disk: free some space there, and look at its log; nothing that was accepted is lost ({reason})"
    )]
    Unwritable {
        /// Where it is.
        place: String,
        /// What it said.
        reason: String,
    },
    /// Something else lives under the names that belong to this broker.
    #[error(
        "another program has keys at {place} with the names that are used here: choose a ?namespace= of its own"
    )]
    Taken {
        /// Where it is.
        place: String,
    },
    /// The server failed in another way.
    #[error("{place}: {reason}")]
    Server {
        /// Where it is.
        place: String,
        /// What it said.
        reason: String,
    },
    /// The broker was closed while the call waited.
    #[error("the broker was closed")]
    Closed,
}

impl Error {
    /// What a failure of the system with a file means.
    pub fn io(path: &Path, error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Self::Full { path: path.into() }
            }
            io::ErrorKind::FileTooLarge => Self::Io {
                path: path.into(),
                reason: format!("{error}: raise the limit on files, 'ulimit -f'"),
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

    /// The system has refused a thread.
    pub fn no_thread(error: &io::Error) -> Self {
        Self::Starved {
            what: "thread".into(),
            reason: error.to_string(),
        }
    }

    /// Whether the same call may succeed later without anybody doing anything, and does no harm if it had succeeded before.
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

    /// Whether the broker has no space for anything new until some is freed. It keeps what it has accepted meanwhile.
    pub fn is_out_of_space(&self) -> bool {
        matches!(
            self,
            Self::Full { .. } | Self::OutOfMemory { .. } | Self::Unwritable { .. }
        )
    }

    /// Whether the caller named something that is not there or cannot be done to it, rather than something failing here.
    pub fn is_callers(&self) -> bool {
        matches!(
            self,
            Self::Invalid(_)
                | Self::NotFound(_)
                | Self::Finished(..)
                | Self::Unfinished(..)
                | Self::NotDead(_)
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

/// Whether the system has refused something because there is no more of it for this process or for all.
pub fn is_resource_exhaustion(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::EAGAIN)
    )
}
