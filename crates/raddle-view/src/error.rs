//! The error of a query.

use raddle_model::{ControlCommand, Tid, tid::ShortTid};

/// The result of a query.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a query has no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The broker failed, or has no such task.
    #[error(transparent)]
    Broker(#[from] raddle_broker::Error),
    /// No task and no worker has this short id.
    #[error("no task has an id that ends in {0}: see 'raddle task list --all'")]
    UnknownShortId(ShortTid),
    /// Several tasks have this short id.
    #[error(
        "{short} matches several tasks: give the full id of one: {}",
        join(tids)
    )]
    AmbiguousShortId {
        /// The short id.
        short: ShortTid,
        /// The tasks that have it.
        tids: Vec<Tid>,
    },
    /// The last task was asked for, and there is none.
    #[error("there is no task yet")]
    NoTaskYet,
    /// No batch has this name.
    #[error("there is no batch '{0}': see 'raddle batch list'")]
    UnknownBatch(String),
    /// The last batch was asked for, and there is none.
    #[error("there is no batch yet")]
    NoBatchYet,
    /// The task refused a command.
    #[error("task {tid} is {state} and will not {command}: {reason}")]
    CommandRefused {
        /// The task.
        tid: Tid,
        /// Its state.
        state: String,
        /// The command.
        command: ControlCommand,
        /// The reason.
        reason: String,
    },
    /// The task is a worker.
    #[error("task {tid} {status}, and cannot be {done}: {advice}")]
    IsWorker {
        /// The worker.
        tid: Tid,
        /// What it is.
        status: String,
        /// What cannot be done to it.
        done: &'static str,
        /// What to do instead.
        advice: String,
    },
    /// A completed task is only run again on request.
    #[error("task {0} is completed: run it again with 'raddle task recover --force {0}'")]
    Completed(Tid),
    /// The worker of a task does not reply.
    #[error(
        "the worker of task {0} does not reply: kill it with 'raddle task kill', or its worker with 'raddle worker stop --kill'"
    )]
    WorkerSilent(Tid),
}

fn join(tids: &[Tid]) -> String {
    let tids: Vec<String> = tids.iter().map(Tid::to_string).collect();
    tids.join(", ")
}
