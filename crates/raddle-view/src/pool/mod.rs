//! Pools of workers that are called: which there are, and what their workers report.

mod find;
pub mod query;
mod round_trips;

pub use find::{FoundWorkers, local_pools, snapshot};
pub use query::{QueriedWorker, QueryFailure, WorkerActivity};
pub use round_trips::RoundTrips;
