//! `Violation`: a broken guarantee, and its message.

use std::{fmt, time::Duration};

use raddle_model::{TaskEventKind, Tid};

use crate::processes::Survivor;

/// A broken guarantee.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Violation {
    /// The task was accepted, and the broker does not know it.
    NotStored(Tid),
    /// The task was accepted, and has no final state.
    NotFinished(Tid),
    /// The task is `completed`, and that attempt never recorded its end.
    NeverRan(Tid, u32),
    /// The task succeeded, and the task that it chained does not exist.
    MissingFollowUp(Tid),
    /// More than one task was chained, or by another attempt than the one that succeeded, if one
    /// did.
    WrongFollowUp(Tid, Option<u32>, Vec<u32>),
    /// A message was accepted and became no task.
    MessageLost(Tid),
    /// A message became this many tasks.
    MessageDuplicated(Tid, usize),
    /// A due time, in nanoseconds since the epoch, was fired more than once.
    FiredTwice(u64),
    /// After this due time the next ones were skipped.
    NotFired(u64, Duration),
    /// The log has another event after the final state.
    EventAfterEnd(Tid),
    /// A write of an attempt that was not the latest was accepted.
    StaleWrite(Tid, TaskEventKind, u32),
    /// Two attempts ran at the same time.
    Overlap(Tid, u32, u32, Duration),
    /// One attempt was started twice.
    BegunTwice(Tid, u32),
    /// A process of an attempt was alive after the end of its task.
    OrphanAfterEnd(Tid, Duration),
    /// The task reached another final state than it should have.
    WrongEnd(Tid, TaskEventKind),
    /// The stored output differs from what the task wrote.
    OutputMismatch(Tid),
    /// A part of an atomic group of a submit was stored, or more than was submitted.
    PartialSubmit {
        batch: usize,
        planned: usize,
        stored: usize,
    },
    /// The broker's counters differ from its log.
    CountMismatch(String),
    /// A process is still alive.
    Survivor(Survivor),
    /// A process exited or hung unexpectedly.
    Process(String),
}

impl Violation {
    pub(crate) fn is_loss(&self) -> bool {
        matches!(
            self,
            Self::NotStored(_)
                | Self::NotFinished(_)
                | Self::NeverRan(..)
                | Self::MissingFollowUp(_)
                | Self::MessageLost(_)
                | Self::NotFired(..)
        )
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotStored(tid) => write!(
                f,
                "LOST: task {tid} was accepted or ran, and the broker does not know it"
            ),
            Self::NotFinished(tid) => write!(f, "LOST: task {tid} has no final state"),
            Self::NeverRan(tid, attempt) => {
                write!(
                    f,
                    "LOST: task {tid} is 'completed', and its attempt {attempt} did not finish"
                )
            }
            Self::MissingFollowUp(tid) => write!(
                f,
                "LOST: task {tid} is 'completed', and the task that it chained does not exist"
            ),
            Self::WrongFollowUp(tid, success, by) => {
                let ended = success.map_or("none".into(), |attempt| attempt.to_string());
                write!(
                    f,
                    "CHAIN: attempt {ended} of task {tid} succeeded, and attempts {by:?} have chained tasks"
                )
            }
            Self::MessageLost(message) => write!(
                f,
                "LOST: message {message} was accepted, and became no task"
            ),
            Self::MessageDuplicated(message, tasks) => {
                write!(f, "DOUBLE: message {message} became {tasks} tasks")
            }
            Self::FiredTwice(due) => {
                write!(f, "DOUBLE: the due time {due} was fired more than once")
            }
            Self::NotFired(due, gap) => {
                write!(
                    f,
                    "LOST: after the due time {due} no trigger fired for {gap:?}, and more were due"
                )
            }
            Self::EventAfterEnd(tid) => {
                write!(f, "SECOND END: task {tid} has events after its final state")
            }
            Self::StaleWrite(tid, kind, attempt) => {
                write!(
                    f,
                    "STALE WRITE: '{kind}' of attempt {attempt} of task {tid} was accepted"
                )
            }
            Self::Overlap(tid, earlier, later, time) => {
                write!(
                    f,
                    "OVERLAP: attempts {earlier} and {later} of task {tid} ran at the same time for at least {time:?}"
                )
            }
            Self::BegunTwice(tid, attempt) => {
                write!(
                    f,
                    "OVERLAP: attempt {attempt} of task {tid} was started twice"
                )
            }
            Self::OrphanAfterEnd(tid, time) => {
                write!(
                    f,
                    "SURVIVOR: a process of task {tid} was alive {time:?} after its end"
                )
            }
            Self::WrongEnd(tid, kind) => write!(f, "WRONG END: task {tid} is '{kind}'"),
            Self::OutputMismatch(tid) => {
                write!(
                    f,
                    "OUTPUT: the stored output of task {tid} differs from what it wrote"
                )
            }
            Self::PartialSubmit {
                batch,
                planned,
                stored,
            } => {
                write!(
                    f,
                    "PARTIAL: {stored} of the {planned} tasks of batch {batch} are stored"
                )
            }
            Self::CountMismatch(text) => write!(f, "COUNT: {text}"),
            Self::Survivor(Survivor { pid, description }) => {
                write!(f, "SURVIVOR: process {pid}, {description}")
            }
            Self::Process(text) => write!(f, "PROCESS: {text}"),
        }
    }
}
