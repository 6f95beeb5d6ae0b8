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
    TimerFired,
    /// The total number of stop requests so far.
    StopRequested(u32),
    /// The outcome of a claim.
    Claimed(Result<ClaimResult>),
    /// An attempt's process has started.
    Started(AttemptStarted),
    /// An attempt is over, and its slot is free. `killed`: its runner had to kill it.
    AttemptEnded {
        slot: usize,
        finish: Box<Completion>,
        killed: bool,
    },
    /// The end of an attempt is written. `None`: the write was given up.
    Recorded {
        attempt_id: AttemptId,
        outcome: Option<CompletionOutcome>,
    },
    /// The broker refuses every write about an attempt, its release included.
    WriteRefused { attempt_id: AttemptId, error: Error },
    /// A write failed and is being retried.
    WriteFailed(Error),
    /// A control command to the worker or to a task.
    Command { tid: Tid, message: ControlMessage },
    /// Hosts do not start any more, or start again.
    HostsChanged,
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
    Empty,
    /// The single task of this worker is finished.
    TaskFinished,
}

/// An action for the service.
#[derive(Debug)]
pub(super) enum WorkerEffect {
    /// Claim tasks.
    Claim {
        max: u32,
        wait: Duration,
        /// Capabilities that there is no room for at present.
        without: Vec<String>,
    },
    /// Cancel the claim. Tasks that it has taken by then are released.
    CancelClaim,
    Run {
        slot: usize,
        task: Box<LeasedTask>,
    },
    SendCommand {
        slot: usize,
        command: RunnerCommand,
    },
    Write(PendingWrite),
    RunJob(CommandJob),
    /// Drop an attempt that was claimed under a lost lease: this worker must not write about it.
    Abandon(AttemptId),
    /// Start the shutdown deadline: retries end from now on.
    StartDeadline,
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
    Exit(WorkerEndReason),
    /// The worker may go on under a new id.
    LeaseLost,
}
