//! Callers that mean harm, at workers of `myapp pool serve`: whoever is refused is counted and told of in the log, without a secret, and honest callers are
//! served all the while.

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
#[expect(dead_code, reason = "shared with those tests that do more with it")]
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

/// The program whose routines are served.
const CALLEE: &str = env!("CARGO_BIN_EXE_raddle-test-callee");
