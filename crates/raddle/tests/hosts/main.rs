//! Pools across machines: hosts on a network of their own, whose cables are pulled, whose power is cut, and whose workers come and go.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod cut;
mod finding;
mod latency;
mod load;
mod machine;
mod replaced;
#[path = "../bin/steady.rs"]
mod steady;
mod trust;
mod tutorial;

use std::time::{Duration, Instant};

use self::{
    load::{Called, Load, Settings},
    machine::Machine,
    steady::now,
};

/// The program that serves, and calls.
const FAR: &str = env!("CARGO_BIN_EXE_raddle-test-far");

fn pause(millis: u64) {
    std::thread::sleep(Duration::from_millis(millis));
}

/// Waits until something is so, and says how long that took.
#[track_caller]
fn until(what: &str, seconds: u64, mut is_so: impl FnMut() -> bool) -> Duration {
    let began = Instant::now();
    while !is_so() {
        assert!(
            began.elapsed() < Duration::from_secs(seconds),
            "not within {seconds} s: {what}"
        );
        pause(10);
    }
    began.elapsed()
}
