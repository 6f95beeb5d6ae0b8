//! A pool: workers of one's own, workers of others, or both, and the calls that are made on them.

mod builder;
mod lifecycle;
mod pool_membership;
pub mod standalone;
mod supervisor;
#[cfg(test)]
mod tests;

use std::{future::Future, sync::Arc};

use raddle_discovery::{DiscoveryError, WorkerMetadata};
use tokio::task::JoinHandle;

pub use self::builder::PoolBuilder;
use self::supervisor::PoolSupervisor;
use crate::{CallTarget, WorkerProxy, worker::StopMode};

/// Workers to call routines on. When it is dropped, the workers that it has started are gone.
///
/// | size | discovery | |
/// | --- | --- | --- |
/// | not said | not said | *default*: as many workers as there are cores |
/// | said | not said | *ephemeral*: so many workers |
/// | not said | said | *durable*: no workers of its own; those that the discovery tells of |
/// | said | said | *hybrid*: both |
#[derive(Debug)]
pub struct WorkerPool {
    name: String,
    proxy: WorkerProxy,
    keeper: Option<Arc<PoolSupervisor>>,
}

/// Why there is no pool.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// Too few of its workers could be started.
    #[error("{} of {wanted} workers could not be started: {}", causes.len(), causes.join("; "))]
    Start {
        /// How many there were to be.
        wanted: usize,
        /// Why each of those could not that could not.
        causes: Vec<String>,
    },
    /// Its workers cannot be published, or others not be heard of.
    #[error(transparent)]
    Discovery(#[from] DiscoveryError),
    /// What was asked for makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// There is nothing to call.
    #[error(
        "this program has no routines that a worker could serve: functions with #[raddle::routine] are routines of the program that they \
         are in, which serves them by itself, as in 'myapp pool serve'; 'raddle pool serve --program ./myapp' does it, too"
    )]
    NoRoutines,
}

impl WorkerPool {
    /// A pool, to be described and started.
    pub fn builder() -> PoolBuilder {
        PoolBuilder::default()
    }

    /// Its name among the pools of this user on this machine.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The workers that calls can go to now.
    pub fn workers(&self) -> Vec<WorkerMetadata> {
        self.proxy
            .context()
            .workers()
            .iter()
            .map(|entry| (*entry.metadata).clone())
            .collect()
    }

    /// Runs a future in which routines are called on this pool.
    pub fn scope<F: Future>(&self, future: F) -> impl Future<Output = F::Output> + use<F> {
        self.proxy.scope(future)
    }

    /// Spawns a task in which routines are called on this pool. A task of [`tokio::spawn`] is outside of every scope.
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        self.proxy.spawn(future)
    }

    /// Stops it: calls in flight are cancelled. Returns when its workers are gone.
    pub async fn stop(self) {
        self.stop_with(StopMode::None).await;
    }

    /// Stops it. Calls in flight may take as long as is said.
    pub async fn stop_with(mut self, patience: StopMode) {
        if let Some(keeper) = self.keeper.take() {
            keeper.stop(patience).await;
        }
    }
}

impl CallTarget for WorkerPool {
    fn proxy(&self) -> &WorkerProxy {
        &self.proxy
    }
}

impl Drop for WorkerPool {
    fn drop(&mut self) {
        if let Some(keeper) = &self.keeper {
            keeper.abandon();
        }
    }
}
