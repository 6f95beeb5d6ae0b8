//! A custom worker: wraps a `LocalWorker`, monitors its process, and restarts it at the same
//! address when it exits.
//!
//! A pool replaces exited workers by itself, at once and under a new name. This is for programs
//! that need the same worker again.
//!
//! `cargo run --example resilient`

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use raddle::{
    WorkerPool, async_trait,
    discovery::LocalDiscovery,
    pool::{
        WorkerMetadata, WorkerUid,
        worker::{LocalWorker, StopMode, Worker, WorkerError},
    },
};
use tokio::task::AbortHandle;

/// Checks regularly whether its process is alive.
struct ResilientWorker {
    worker: Arc<LocalWorker>,
    check_interval: Duration,
    monitor: Mutex<Option<AbortHandle>>,
}

impl ResilientWorker {
    fn new(tags: &BTreeSet<String>, check_interval: Duration) -> Self {
        Self {
            worker: Arc::new(LocalWorker::new(tags)),
            check_interval,
            monitor: Mutex::default(),
        }
    }

    fn monitor(&self, task: Option<AbortHandle>) {
        let mut monitor = self.monitor.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(before) = std::mem::replace(&mut *monitor, task) {
            before.abort();
        }
    }
}

async fn look_after(worker: Arc<LocalWorker>, check_interval: Duration) {
    loop {
        tokio::time::sleep(check_interval).await;
        if !worker.process().is_some_and(|process| process.is_alive()) {
            match worker.restart(None).await {
                Ok(()) => println!("restarted"),
                Err(error) => eprintln!("cannot restart: {error}"),
            }
        }
    }
}

#[async_trait]
impl Worker for ResilientWorker {
    fn uid(&self) -> WorkerUid {
        self.worker.uid()
    }

    fn metadata(&self) -> Option<WorkerMetadata> {
        self.worker.metadata()
    }

    fn tags(&self) -> &BTreeSet<String> {
        self.worker.tags()
    }

    fn extra(&self) -> &BTreeMap<String, String> {
        self.worker.extra()
    }

    async fn start(&self, timeout: Option<Duration>) -> Result<(), WorkerError> {
        self.worker.start(timeout).await?;
        let task = tokio::spawn(look_after(Arc::clone(&self.worker), self.check_interval));
        self.monitor(Some(task.abort_handle()));
        Ok(())
    }

    async fn stop(&self, patience: StopMode) -> Result<(), WorkerError> {
        self.monitor(None);
        self.worker.stop(patience).await
    }

    // `ended` stays as it is, and says that it never does: the pool has nothing to replace.
}

impl Drop for ResilientWorker {
    fn drop(&mut self) {
        self.monitor(None);
    }
}

#[raddle::routine]
fn pid() -> u32 {
    std::process::id()
}

#[raddle::routine]
async fn crash() {
    std::process::exit(3);
}

#[raddle::main]
async fn main() -> raddle::Result<()> {
    let resilient = |tags: &_| ResilientWorker::new(tags, Duration::from_millis(100));
    let pool = WorkerPool::builder()
        .size(1)
        .worker(resilient)
        .start()
        .await?;
    let (worker, before) = (pool.workers()[0].uid, pid().on(&pool).await?);
    println!(
        "the call is {}",
        if crash().on(&pool).await.is_err() {
            "lost"
        } else {
            "back"
        }
    );
    let mut after = pid().on(&pool).await;
    for _ in 0..100 {
        if after.is_ok() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        after = pid().on(&pool).await;
    }
    let after = after?;
    assert_ne!(after, before);
    assert_eq!(pool.workers()[0].uid, worker);
    println!("the same worker is there again, in another process");
    // Other programs find it by the name of the pool, and hear within a second that it is another
    // process.
    let found = LocalDiscovery::new(pool.name())?;
    let is_found = || {
        found
            .snapshot()
            .iter()
            .any(|found| found.uid == worker && found.pid == after)
    };
    let finding = async {
        while !is_found() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), finding).await?;
    println!("it is found as that process");
    pool.stop().await;
    Ok(())
}
