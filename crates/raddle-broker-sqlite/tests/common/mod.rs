//! Helpers for the tests of SQLite and of brokers over a socket.

use std::time::{Duration, Instant};

use raddle_broker::ClaimRequest;
use raddle_model::{CapSet, Tid};

/// The limit for any wait.
pub(crate) const SOON: Duration = Duration::from_secs(60);
/// A lease that outlasts the test.
pub(crate) const TTL: Duration = Duration::from_secs(120);

/// A claim of one task.
pub(crate) fn request(owner: Tid, wait: Duration) -> ClaimRequest {
    ClaimRequest {
        owner,
        caps: CapSet::new(),
        queues: vec!["default".into()],
        only: None,
        max: 1,
        wait,
    }
}

/// Waits until `found` returns a value.
pub(crate) async fn wait_until<T>(what: &str, mut found: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + SOON;
    loop {
        if let Some(found) = found().await {
            return found;
        }
        assert!(Instant::now() < deadline, "timed out waiting until {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
