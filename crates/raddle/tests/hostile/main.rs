//! Malicious callers against `myapp pool serve`: refusals are counted and logged without secrets,
//! and honest callers are served all the time.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod authorization;
mod certificates;
mod connections;
mod floods;
mod frames;
mod honest_caller;
mod messages;
mod raw;
#[path = "../calls/routines.rs"]
mod routines;
#[expect(dead_code, reason = "other tests use more of it")]
#[path = "../serve/server.rs"]
mod server;
mod target;
#[path = "../support/waits.rs"]
mod waits;

use self::{
    honest_caller::HonestCaller,
    raw::Raw,
    target::TargetServer,
    waits::{wait_until, within},
};

/// The program of the workers.
const CALLEE: &str = env!("CARGO_BIN_EXE_raddle-test-callee");
