//! Workers on the same network, as machines see them that have nothing else in common: hosts that the tests make.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod avahi;
mod forger;
mod hostile;
mod interfaces;
mod partitions;
mod pools;
mod program;
mod records;

use std::time::{Duration, Instant};

use raddle::pool::{WorkerMetadata, WorkerUid};

/// What takes no longer than that happens at once, on a machine that has much else to do.
const SOON: Duration = Duration::from_secs(20);
/// How long nothing is heard for it to be believed that nothing comes.
const QUIET: Duration = Duration::from_secs(2);

/// A worker that is said to serve there.
fn at(address: &str) -> WorkerMetadata {
    WorkerMetadata {
        uid: WorkerUid::new(),
        address: address.into(),
        pid: 4711,
        version: "1.2.3".into(),
        tags: ["gpu".into()].into(),
        extra: [("zone".into(), "b".into())].into(),
        secure: false,
        encodings: [].into(),
    }
}

/// The same, as others hear of it.
fn seen_at(worker: &WorkerMetadata, address: impl ToString) -> WorkerMetadata {
    WorkerMetadata {
        address: address.to_string(),
        ..worker.clone()
    }
}

/// A word to a program about a worker.
fn command(command: &str, worker: &WorkerMetadata) -> String {
    format!("{command} {}", serde_json::to_string(worker).unwrap())
}

/// Waits until something is so.
fn wait_until(what: &str, within: Duration, mut condition: impl FnMut() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < within, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}
