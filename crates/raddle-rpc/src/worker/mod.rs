//! Workers: the trait that pools use, and worker processes.

mod call_counts;
mod local;
mod parent_link;
mod process;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use raddle_discovery::{WorkerMetadata, WorkerUid};

pub use self::{
    call_counts::{CallCounts, REASONS},
    local::LocalWorker,
    process::{HostCommand, ProcessSettings, WorkerProcess},
};
use crate::RpcError;

/// Serves calls at an address. Any implementation that serves `raddle.v1.Worker` can be in a pool.
#[async_trait]
pub trait Worker: Send + Sync + 'static {
    /// The worker's id, from its creation on.
    fn uid(&self) -> WorkerUid;

    /// The worker's published metadata. `None` before it was started.
    fn metadata(&self) -> Option<WorkerMetadata>;

    /// Its tags, which callers select workers by.
    fn tags(&self) -> &BTreeSet<String>;

    /// Further published properties.
    fn extra(&self) -> &BTreeMap<String, String>;

    /// The address that it serves at. `None` before it was started.
    fn address(&self) -> Option<String> {
        self.metadata().map(|metadata| metadata.address)
    }

    /// Starts the worker. Returns when it serves.
    async fn start(&self, timeout: Option<Duration>) -> Result<(), WorkerError>;

    /// Stops the worker. Returns when it is gone.
    async fn stop(&self, mode: StopMode) -> Result<(), WorkerError>;

    /// Waits until the metadata changes, such as after a restart of the process, and returns it.
    /// Called in a loop.
    async fn changed(&self) -> WorkerMetadata {
        std::future::pending().await
    }

    /// The worker's call counts, also after it has ended. `None` if it has none.
    async fn call_counts(&self) -> Option<CallCounts> {
        None
    }

    /// Waits until the worker has ended by itself, and returns how. A pool then starts another one.
    async fn ended(&self) -> String {
        std::future::pending().await
    }
}

/// Makes the workers of a pool. Any function from tags to a worker is one.
pub trait WorkerFactory: Send + Sync + 'static {
    /// Makes a worker with these tags, and does not start it.
    fn make(&self, tags: &BTreeSet<String>) -> Arc<dyn Worker>;
}

impl<F, W> WorkerFactory for F
where
    F: Fn(&BTreeSet<String>) -> W + Send + Sync + 'static,
    W: Worker,
{
    fn make(&self, tags: &BTreeSet<String>) -> Arc<dyn Worker> {
        Arc::new(self(tags))
    }
}

/// The fate of calls in flight when a worker is stopped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StopMode {
    /// They are cancelled.
    #[default]
    Cancel,
    /// They may take this long, and are cancelled then.
    DrainFor(Duration),
    /// They run to their end.
    Drain,
}

/// Why a worker could not be started or stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerError {
    /// It was started already.
    #[error("the worker was started already")]
    Started,
    /// It is not running.
    #[error("the worker is not running")]
    NotRunning,
    /// Its process could not be started.
    #[error("cannot start a worker process: {0}")]
    Spawn(#[source] std::io::Error),
    /// It ended before it was ready.
    #[error("the worker ended before it was ready ({0})")]
    Ended(String),
    /// It cannot serve.
    #[error("the worker cannot serve: {0}")]
    Unable(String),
    /// It was not ready in time.
    #[error("the worker was not ready within {0:?}")]
    TooSlow(Duration),
    /// The program's `main` has no entry point for workers.
    #[error("this program cannot be its own worker: its `main` needs #[raddle::main]")]
    NoEntry,
    /// A request to it failed.
    #[error("the worker did not answer: {0}")]
    Rpc(#[from] RpcError),
}

impl StopMode {
    /// The timeout of a stop request in seconds: 0 cancels, a negative one waits without limit.
    pub(crate) fn seconds(self) -> f64 {
        match self {
            Self::Cancel => 0.0,
            Self::DrainFor(time) => time.as_secs_f64(),
            Self::Drain => -1.0,
        }
    }

    /// Time limit for the whole stop, if the worker needs `margin` beyond its calls.
    pub(crate) fn time_limit(self, margin: Duration) -> Option<Duration> {
        match self {
            Self::Cancel => Some(margin),
            Self::DrainFor(time) => Some(time.saturating_add(margin)),
            Self::Drain => None,
        }
    }
}
