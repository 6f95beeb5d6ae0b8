//! What can happen to a worker, and what it can do about it.

use std::{collections::HashSet, time::Duration};

use raddle_broker::{
    AttemptId, AttemptStarted, Completion, CompletionOutcome, Error, LeasedTask, Result,
};
use raddle_model::{ControlMessage, Tid};
use raddle_runner::RunnerCommand;

use super::{WorkerEndReason, completion_batcher::PendingWrite, control_commands::CommandJob};

/// Something that has happened.
#[derive(Debug)]
pub(super) enum WorkerLoopEvent {
    /// The time that was waited for has come.
    Time,
    /// It has been asked to stop so many times in all.
    Asked(u32),
    /// The broker was asked for tasks.
    Claimed(Result<ClaimResult>),
    /// A target has begun.
    Started(AttemptStarted),
    /// An attempt is over, and its slot is free. Whether its runner had to kill it.
    Ended {
        slot: usize,
        finish: Box<Completion>,
        killed: bool,
    },
    /// What became of an attempt is written, or `None`: it was given up.
    Settled {
        attempt_id: AttemptId,
        outcome: Option<CompletionOutcome>,
    },
    /// The broker takes nothing that is said of an attempt, not even that it goes back.
    Refused { attempt_id: AttemptId, error: Error },
    /// What became of attempts cannot be written yet, and is tried again.
    Unwritten(Error),
    /// A control word, to the worker or to a task.
    Told { tid: Tid, message: ControlMessage },
    /// The broker was asked which attempts it assigns to this worker. These were held when it was asked.
    Audited {
        held: Vec<AttemptId>,
        assigned: HashSet<AttemptId>,
    },
    /// Others may have its tasks.
    LeaseLost,
}

/// What asking for tasks has found.
#[derive(Debug)]
pub(super) enum ClaimResult {
    Tasks(Vec<LeasedTask>),
    Nothing,
    /// The one task that was asked for has reached its end.
    Over,
}

/// Something to do.
#[derive(Debug)]
pub(super) enum WorkerEffect {
    /// Ask for tasks.
    Claim {
        max: u32,
        wait: Duration,
        /// Capabilities that there is no room for at present.
        without: Vec<String>,
    },
    /// Stop asking. What may have been taken by then goes back.
    Unclaim,
    Run {
        slot: usize,
        claim: Box<LeasedTask>,
    },
    Order {
        slot: usize,
        order: RunnerCommand,
    },
    Write(PendingWrite),
    Errand(CommandJob),
    /// It was claimed under a lease that is lost: it is not ours to write about.
    Forsake(AttemptId),
    /// Nothing is insisted on from now on.
    Haste,
    /// Remove what has expired.
    Purge,
    /// Ask the broker which attempts it assigns to this worker, which holds these.
    Audit {
        held: Vec<AttemptId>,
    },
    /// Log it.
    Warn {
        attempt_id: AttemptId,
        message: &'static str,
    },
    End(Result<LoopEnd>),
}

/// Why the loop ended.
#[derive(Debug, PartialEq)]
pub(super) enum LoopEnd {
    Left(WorkerEndReason),
    /// It may go on under another id.
    LeaseLost,
}
