//! Calls with real workers: results, context, failures.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod cancellation;
mod clock_jumps;
mod discovery;
mod examples;
mod factories;
mod faults;
mod grpc_client;
mod inotify;
mod limits;
mod nested;
mod other_users;
mod pool_modes;
mod proxies;
mod routines;
mod secure;
mod shutdown;
mod streams;
mod stress;
mod unreachable_workers;
mod values;
#[path = "../support/waits.rs"]
mod waits;

use std::path::Path;

use raddle::{
    WorkerPool,
    pool::{PoolBuilder, worker::LocalWorker},
};

use self::waits::{wait_until, within};

/// The program of the workers: a test binary cannot be one.
const CALLEE: &str = env!("CARGO_BIN_EXE_raddle-test-callee");

/// A pool of workers with the routines of the tests.
fn pool(size: usize) -> PoolBuilder {
    WorkerPool::builder()
        .size(size)
        .worker(|tags: &_| LocalWorker::new(tags).program(CALLEE))
}

async fn start_pool(size: usize) -> WorkerPool {
    pool(size).start().await.expect("workers start")
}

/// Whether a process runs and is not a zombie.
fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat"))
        .unwrap_or_default();
    stat.rsplit_once(") ")
        .is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

fn signal(pid: u32, signal: i32) {
    // SAFETY: plain integers; the test has started this process.
    let sent = unsafe { libc::kill(pid as i32, signal) };
    assert_eq!(sent, 0, "{}", std::io::Error::last_os_error());
}

/// The children of this process that were not waited for.
fn children() -> Vec<u32> {
    let threads = std::fs::read_dir("/proc/self/task")
        .unwrap()
        .map(|thread| thread.unwrap().path());
    let all: String = threads
        .filter_map(|thread| std::fs::read_to_string(thread.join("children")).ok())
        .collect();
    all.split_whitespace()
        .map(|pid| pid.parse().unwrap())
        .collect()
}
