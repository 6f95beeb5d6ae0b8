//! Events that reach a `WorkerCore`, and the effects that it returns.

use std::{collections::HashSet, time::Duration};

use raddle_broker::{
    AttemptId, AttemptStarted, Completion, CompletionOutcome, Error, LeasedTask, Result,
};
use raddle_model::{ControlMessage, Tid};
use raddle_runner::RunnerCommand;

use super::{WorkerEndReason, completion_batcher::PendingWrite, control_commands::CommandJob};

/// An event in the worker's loop.
#[derive(Debug)]
pub(super) enum WorkerLoopEvent {
    /// The timer of [`WorkerCore::wake_at`](super::core::WorkerCore::wake_at) has fired.
    Time,
    /// The total number of stop requests so far.
    Asked(u32),
    /// The outcome of a claim.
    Claimed(Result<ClaimResult>),
    /// An attempt's process has started.
    Started(AttemptStarted),
    /// An attempt is over, and its slot is free. `killed`: its runner had to kill it.
    Ended {
        slot: usize,
        finish: Box<Completion>,
        killed: bool,
    },
    /// The end of an attempt is written. `None`: the write was given up.
    Settled {
        attempt_id: AttemptId,
        outcome: Option<CompletionOutcome>,
    },
    /// The broker refuses every write about an attempt, its release included.
    Refused { attempt_id: AttemptId, error: Error },
    /// A write failed and is being retried.
    Unwritten(Error),
    /// A control command to the worker or to a task.
    Told { tid: Tid, message: ControlMessage },
    /// The attempts that the broker assigns to this worker. `held` was taken before the query.
    Audited {
        held: Vec<AttemptId>,
        assigned: HashSet<AttemptId>,
    },
    /// The lease is lost: other workers may have the tasks.
    LeaseLost,
}

/// The outcome of a claim.
#[derive(Debug)]
pub(super) enum ClaimResult {
    Tasks(Vec<LeasedTask>),
    Nothing,
    /// The single task of this worker is finished.
    Over,
}

/// An action for the service.
#[derive(Debug)]
pub(super) enum WorkerEffect {
    /// Claim tasks.
    Claim {
        max: u32,
        wait: Duration,
    },
    /// Cancel the claim. Tasks that it has taken by then are released.
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
    /// Drop an attempt that was claimed under a lost lease: this worker must not write about it.
    Forsake(AttemptId),
    /// Start the shutdown deadline: retries end from now on.
    Haste,
    /// Remove expired records.
    Purge,
    /// Ask the broker which attempts it assigns to this worker.
    Audit {
        held: Vec<AttemptId>,
    },
    /// Log a warning.
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
    /// The worker may go on under a new id.
    LeaseLost,
}
