//! Pools: workers that a program starts, finds, or both, and the calls to them.

mod builder;
mod lifecycle;
pub mod standalone;
mod supervisor;
mod supervisor_loop;
#[cfg(test)]
mod tests;

use std::{future::Future, sync::Arc};

use raddle_discovery::{DiscoveryError, WorkerMetadata};
use tokio::task::JoinHandle;

pub use self::builder::PoolBuilder;
use self::supervisor::PoolSupervisor;
use crate::{CallTarget, WorkerProxy, worker::StopMode};

/// Workers to call routines on. Dropping the pool kills the workers that it has started.
///
/// | size | discovery | |
/// | --- | --- | --- |
/// | not set | not set | *default*: as many workers as there are cores |
/// | set | not set | *ephemeral*: that many workers |
/// | not set | set | *durable*: no workers of its own, only those that the discovery lists |
/// | set | set | *hybrid*: both |
#[derive(Debug)]
pub struct WorkerPool {
    name: String,
    proxy: WorkerProxy,
    supervisor: Option<Arc<PoolSupervisor>>,
}

/// Why a pool could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// Too few of its workers could be started.
    #[error("{} of {wanted} workers could not be started: {}", causes.len(), causes.join("; "))]
    Start {
        /// The pool's size.
        wanted: usize,
        /// Why workers could not be started.
        causes: Vec<String>,
    },
    /// The discovery failed: workers cannot be published or found.
    #[error(transparent)]
    Discovery(#[from] DiscoveryError),
    /// The options are invalid.
    #[error("{0}")]
    Invalid(String),
    /// The program has no routines.
    #[error(
        "this program has no routines: each program serves the functions with #[raddle::routine] that it contains, \
         as in 'myapp pool serve', or 'raddle pool serve --program ./myapp'"
    )]
    NoRoutines,
}

impl WorkerPool {
    /// Starts building a pool.
    pub fn builder() -> PoolBuilder {
        PoolBuilder::default()
    }

    /// The pool's name, which is unique to this user on this machine unless the name was chosen.
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

    /// Runs a future whose calls go to this pool.
    pub fn scope<F: Future>(&self, future: F) -> impl Future<Output = F::Output> + use<F> {
        self.proxy.scope(future)
    }

    /// Spawns a task whose calls go to this pool. A task of [`tokio::spawn`] is outside every
    /// scope.
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        self.proxy.spawn(future)
    }

    /// Stops the pool, and cancels calls in flight. Returns when its workers are gone.
    pub async fn stop(self) {
        self.stop_with(StopMode::Cancel).await;
    }

    /// Stops the pool in this mode. Returns when its workers are gone.
    pub async fn stop_with(mut self, mode: StopMode) {
        if let Some(supervisor) = self.supervisor.take() {
            supervisor.stop(mode).await;
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
        if let Some(supervisor) = &self.supervisor {
            supervisor.drop_workers();
        }
    }
}
