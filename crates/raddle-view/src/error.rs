//! The error of a query.

use raddle_model::{Tid, tid::ShortTid};

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
    #[error("no task ends in {0} here: 'raddle task list --all' shows those there are")]
    UnknownShortId(ShortTid),
    /// Several tasks have this short id.
    #[error("{short} is short for several tasks: give one in full: {}", join(tids))]
    AmbiguousShortId {
        /// The short id.
        short: ShortTid,
        /// The tasks that have it.
        tids: Vec<Tid>,
    },
    /// The last task was asked for, and there is none.
    #[error("there is no task yet, and so no last one")]
    NoTaskYet,
    /// No batch has this name.
    #[error("there is no batch '{0}': 'raddle batch list' shows those there are")]
    UnknownBatch(String),
    /// The last batch was asked for, and there is none.
    #[error("there is no batch yet, and so no last one")]
    NoBatchYet,
}

fn join(tids: &[Tid]) -> String {
    let tids: Vec<String> = tids.iter().map(Tid::to_string).collect();
    tids.join(", ")
}
