//! Workers: what a pool keeps, and what it starts.

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
    process::{ProcessSettings, WorkerProcess},
};
use crate::RpcError;

/// Something that serves calls at an address. Whoever has this trait and serves `raddle.v1.Worker` can be in a pool.
#[async_trait]
pub trait Worker: Send + Sync + 'static {
    /// Which worker it is, from its making on.
    fn uid(&self) -> WorkerUid;

    /// What is known of it. `None` before it was started.
    fn metadata(&self) -> Option<WorkerMetadata>;

    /// What it can do, for those who choose.
    fn tags(&self) -> &BTreeSet<String>;

    /// Anything else.
    fn extra(&self) -> &BTreeMap<String, String>;

    /// Where it serves. `None` before it was started.
    fn address(&self) -> Option<String> {
        self.metadata().map(|metadata| metadata.address)
    }

    /// Starts it. Returns when it serves.
    async fn start(&self, timeout: Option<Duration>) -> Result<(), WorkerError>;

    /// Stops it. Returns when it is gone.
    async fn stop(&self, patience: StopMode) -> Result<(), WorkerError>;

    /// Waits until something else is to be said of it than at its start, such as that it is another process now, and says it. Called again after.
    async fn changed(&self) -> WorkerMetadata {
        std::future::pending().await
    }

    /// What it has done, and is doing, for those who keep count. Also of one that has ended. `None` if it does not say.
    async fn tally(&self) -> Option<CallCounts> {
        None
    }

    /// Waits until it has ended by itself, and says how. A pool then starts another in its place.
    async fn ended(&self) -> String {
        std::future::pending().await
    }
}

/// Makes the workers of a pool. Every function of tags that gives a worker is one.
pub trait WorkerFactory: Send + Sync + 'static {
    /// A worker with these tags, which is not started.
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

/// What becomes of the calls in flight when a worker is stopped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StopMode {
    /// They are cancelled.
    #[default]
    None,
    /// They may take so long, and are cancelled then.
    For(Duration),
    /// They may take as long as they do.
    Endless,
}

/// Why a worker could not be started or stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerError {
    /// It was started before.
    #[error("the worker has been started before")]
    Started,
    /// It is not running.
    #[error("the worker is not running")]
    NotRunning,
    /// Its process could not be started.
    #[error("cannot start the process of a worker: {0}")]
    Spawn(#[source] std::io::Error),
    /// It ended before it served.
    #[error("the worker ended before it served ({0})")]
    Ended(String),
    /// It cannot serve.
    #[error("the worker cannot serve: {0}")]
    Unable(String),
    /// It did not serve in time.
    #[error("the worker did not serve within {0:?}")]
    TooSlow(Duration),
    /// This program does not begin as it has to.
    #[error("this program cannot be its own worker: its `main` needs #[raddle::main]")]
    NoEntry,
    /// It did not understand, or did not answer.
    #[error("the worker does not answer: {0}")]
    Rpc(#[from] RpcError),
}

impl StopMode {
    /// As it is sent.
    pub(crate) fn seconds(self) -> f64 {
        match self {
            Self::None => 0.0,
            Self::For(time) => time.as_secs_f64(),
            Self::Endless => -1.0,
        }
    }

    /// How long a worker may take in all, beyond what it needs itself.
    pub(crate) fn bound(self, beyond: Duration) -> Option<Duration> {
        match self {
            Self::None => Some(beyond),
            Self::For(time) => Some(time.saturating_add(beyond)),
            Self::Endless => None,
        }
    }
}
