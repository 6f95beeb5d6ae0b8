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
}

fn join(tids: &[Tid]) -> String {
    let tids: Vec<String> = tids.iter().map(Tid::to_string).collect();
    tids.join(", ")
}
