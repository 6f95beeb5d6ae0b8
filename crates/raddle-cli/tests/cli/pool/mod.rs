//! `raddle pool`, and pools in `raddle task tree`.

mod fake;
mod ping;
mod query;
mod serve;
mod stop;

use std::{cell::RefCell, fs, os::unix::fs::DirBuilderExt, path::PathBuf, thread, time::Duration};

use raddle_discovery::{DiscoveryEvent, LocalDiscovery, Publisher, WorkerMetadata};
use raddle_rpc::worker::{LocalWorker, StopMode, Worker, WorkerProcess};
use tokio::runtime::Runtime;

use crate::world::World;

/// A world with pools in it, whose workers are processes of the program.
struct Pools {
    world: World,
    runtime: Runtime,
    workers: Vec<LocalWorker>,
    /// The publisher of the workers. They are listed as long as it lives.
    published: RefCell<Vec<LocalDiscovery>>,
}

impl Pools {
    fn new() -> Self {
        let world = World::new();
        fs::DirBuilder::new()
            .mode(0o700)
            .create(world.path().join("raddle"))
            .unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        Self {
            world,
            runtime,
            workers: Vec::new(),
            published: RefCell::default(),
        }
    }

    fn directory(&self) -> PathBuf {
        self.world.path().join("raddle/pools")
    }

    /// Starts a worker in a pool of this name.
    fn worker(&mut self, pool: &str, tags: &[&str]) -> WorkerMetadata {
        let tags = tags.iter().map(|tag| (*tag).to_owned()).collect();
        let worker = LocalWorker::new(&tags)
            .program(env!("CARGO_BIN_EXE_raddle"))
            .name(pool);
        self.runtime
            .block_on(worker.start(Some(Duration::from_secs(60))))
            .unwrap();
        let metadata = worker.metadata().unwrap();
        let discovery = self.publish(pool, &metadata);
        // As a pool does.
        let (process, ended) = (worker.process().unwrap(), metadata.clone());
        self.runtime.spawn(async move {
            process.ended().await;
            discovery.withdraw(&ended);
        });
        self.workers.push(worker);
        metadata
    }

    /// Says of a worker that it is in a pool.
    fn publish(&self, pool: &str, worker: &WorkerMetadata) -> LocalDiscovery {
        let discovery = LocalDiscovery::in_directory(self.directory(), pool).unwrap();
        self.runtime
            .block_on(discovery.publish(DiscoveryEvent::Added(worker.clone())))
            .unwrap();
        self.published.borrow_mut().push(discovery.clone());
        discovery
    }

    /// The process of the worker that was started so many before.
    fn process(&self, number: usize) -> std::sync::Arc<WorkerProcess> {
        self.workers[number].process().unwrap()
    }

    /// Sends a signal to it.
    fn signal(&self, number: usize, signal: i32) {
        crate::world::kill(self.process(number).pid() as i32, signal);
    }
}

impl Drop for Pools {
    fn drop(&mut self) {
        for worker in &self.workers {
            // One that does not stop in time is killed.
            let stopped = self.runtime.block_on(worker.stop(StopMode::Cancel));
            assert!(stopped.is_ok() || thread::panicking(), "{stopped:?}");
        }
    }
}
