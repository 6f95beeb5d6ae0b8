//! Callers that mean harm, at workers of `myapp pool serve`: whoever is refused is counted and told of in the log, without a secret, and honest callers are
//! served all the while.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod certificates;
mod crowds;
mod floods;
mod frames;
mod honest;
mod messages;
mod raw;
mod rights;
#[path = "../calls/routines.rs"]
mod routines;
#[expect(dead_code, reason = "shared with those tests that do more with it")]
#[path = "../serve/served.rs"]
mod served;
mod site;

use std::time::Duration;

use self::{honest::Honest, raw::Raw, site::Site};

/// The program whose routines are served.
const CALLEE: &str = env!("CARGO_BIN_EXE_raddle-test-callee");

/// Bounds a whole test.
async fn within<F: Future>(seconds: u64, future: F) -> F::Output {
    tokio::time::timeout(Duration::from_secs(seconds), future).await.expect("it takes no longer")
}

/// Waits until something is so.
async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), waiting).await.unwrap_or_else(|_| panic!("not in time: {what}"));
}
