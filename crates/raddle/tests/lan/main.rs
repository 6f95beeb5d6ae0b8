//! LAN discovery between hosts in network namespaces.

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

/// The limit for immediate events, on a busy machine.
const SOON: Duration = Duration::from_secs(20);
/// How long silence must last to conclude that no event comes.
const QUIET: Duration = Duration::from_secs(2);

/// Metadata of a worker at this address.
fn metadata_at(address: &str) -> WorkerMetadata {
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

/// The same as other hosts see it.
fn seen_at(worker: &WorkerMetadata, address: impl ToString) -> WorkerMetadata {
    WorkerMetadata {
        address: address.to_string(),
        ..worker.clone()
    }
}

/// A command about a worker.
fn command(command: &str, worker: &WorkerMetadata) -> String {
    format!("{command} {}", serde_json::to_string(worker).unwrap())
}

/// Waits until the condition holds.
fn wait_until(what: &str, within: Duration, mut condition: impl FnMut() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < within, "timed out waiting until {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}
