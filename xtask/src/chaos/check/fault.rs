//! What must not be, and how it is said.

use std::{fmt, time::Duration};

use raddle_model::{TaskEventKind, Tid};

use crate::procs::Survivor;

/// Something that must not be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Accepted, and the broker does not know it.
    NotStored(Tid),
    /// Accepted, and not over.
    NotFinished(Tid),
    /// Recorded as a success, and that attempt never said that it ended.
    NeverRan(Tid, u32),
    /// It succeeded, and what it had chained is not there.
    Unfollowed(Tid),
    /// It is followed more than once, or by what another attempt has chained than the one that succeeded, if one did.
    Misfollowed(Tid, Option<u32>, Vec<u32>),
    /// A message that was accepted, and has become no task.
    Unread(Tid),
    /// A message that has become so many tasks.
    ReadTwice(Tid, usize),
    /// A due time that was fired more than once, in nanoseconds since the epoch.
    FiredTwice(u64),
    /// After this due time there is a gap before the next.
    NotFired(u64, Duration),
    /// Over a second time, or begun again after its end.
    SecondEnd(Tid),
    /// A write that was accepted from an attempt that was not the latest.
    StaleWrite(Tid, TaskEventKind, u32),
    /// Two attempts at the same time.
    Overlap(Tid, u32, u32, Duration),
    /// One attempt, begun twice.
    BegunTwice(Tid, u32),
    /// Something of an attempt was there after the end of its task.
    Outlived(Tid, Duration),
    /// It ended in another way than it should have.
    WrongEnd(Tid, TaskEventKind),
    /// What is kept of its output is not what it wrote.
    Garbled(Tid),
    /// A submit of which a part of a group was stored, or more than was submitted.
    Torn {
        batch: usize,
        planned: usize,
        stored: usize,
    },
    /// The broker's counts are not what its log says.
    Miscounted(String),
    /// A process that is still there.
    Survivor(Survivor),
    /// What happened to a process that should not have.
    Process(String),
}

impl Fault {
    pub(crate) fn is_loss(&self) -> bool {
        matches!(
            self,
            Self::NotStored(_)
                | Self::NotFinished(_)
                | Self::NeverRan(..)
                | Self::Unfollowed(_)
                | Self::Unread(_)
                | Self::NotFired(..)
        )
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotStored(tid) => write!(
                f,
                "LOST: task {tid} was accepted or ran, and the broker does not know it"
            ),
            Self::NotFinished(tid) => write!(f, "LOST: task {tid} did not come to an end"),
            Self::NeverRan(tid, attempt) => {
                write!(
                    f,
                    "LOST: task {tid} is 'completed', and its attempt {attempt} did not run to its end"
                )
            }
            Self::Unfollowed(tid) => write!(
                f,
                "LOST: task {tid} is 'completed', and what it had chained is not there"
            ),
            Self::Misfollowed(tid, success, by) => {
                let ended = success.map_or("none".into(), |attempt| attempt.to_string());
                write!(
                    f,
                    "CHAIN: of task {tid} attempt {ended} succeeded, and what follows is of attempts {by:?}"
                )
            }
            Self::Unread(message) => write!(
                f,
                "LOST: message {message} was accepted, and has become no task"
            ),
            Self::ReadTwice(message, tasks) => {
                write!(f, "DOUBLE: message {message} has become {tasks} tasks")
            }
            Self::FiredTwice(due) => {
                write!(f, "DOUBLE: what was due at {due} was fired more than once")
            }
            Self::NotFired(due, gap) => {
                write!(
                    f,
                    "LOST: after what was due at {due} nothing was fired for {gap:?}, and more was due"
                )
            }
            Self::SecondEnd(tid) => write!(f, "SECOND END: task {tid} went on after its end"),
            Self::StaleWrite(tid, kind, attempt) => {
                write!(
                    f,
                    "STALE WRITE: '{kind}' of attempt {attempt} of task {tid} was accepted"
                )
            }
            Self::Overlap(tid, earlier, later, time) => {
                write!(
                    f,
                    "OVERLAP: attempts {earlier} and {later} of task {tid} ran at once for {time:?} at least"
                )
            }
            Self::BegunTwice(tid, attempt) => {
                write!(f, "OVERLAP: attempt {attempt} of task {tid} began twice")
            }
            Self::Outlived(tid, time) => {
                write!(
                    f,
                    "SURVIVOR: a process of task {tid} was there {time:?} after its end"
                )
            }
            Self::WrongEnd(tid, kind) => write!(f, "WRONG END: task {tid} is '{kind}'"),
            Self::Garbled(tid) => {
                write!(f, "OUTPUT: what is kept of task {tid} is not what it wrote")
            }
            Self::Torn {
                batch,
                planned,
                stored,
            } => {
                write!(
                    f,
                    "TORN: of the {planned} tasks of batch {batch}, {stored} are stored"
                )
            }
            Self::Miscounted(text) => write!(f, "COUNT: {text}"),
            Self::Survivor(Survivor { pid, what }) => write!(f, "SURVIVOR: process {pid}, {what}"),
            Self::Process(text) => write!(f, "PROCESS: {text}"),
        }
    }
}
