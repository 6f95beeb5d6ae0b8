//! Pools across hosts in network namespaces: cables are pulled, power is cut, and workers come and
//! go.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod credentials;
mod lan_discovery;
mod latency;
mod load;
mod machine;
#[path = "../bin/monotonic.rs"]
mod monotonic;
mod partitions;
mod rolling_restart;
mod tutorial;

use std::time::{Duration, Instant};

use self::{
    load::{CallRecord, Load, Settings},
    machine::Machine,
    monotonic::now,
};

/// The program of the servers and callers.
const PROGRAM: &str = env!("CARGO_BIN_EXE_raddle-test-testnet");

fn pause(millis: u64) {
    std::thread::sleep(Duration::from_millis(millis));
}

/// Waits until the condition holds. Returns how long that took.
#[track_caller]
fn wait_until(what: &str, seconds: u64, mut condition: impl FnMut() -> bool) -> Duration {
    let began = Instant::now();
    while !condition() {
        assert!(
            began.elapsed() < Duration::from_secs(seconds),
            "not within {seconds} s: {what}"
        );
        pause(10);
    }
    began.elapsed()
}
