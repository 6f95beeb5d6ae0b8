//! What the tests of served brokers and of SQLite have in common.

use std::time::{Duration, Instant};

use raddle_broker::ClaimRequest;
use raddle_model::{CapSet, Tid};

/// A deadline for what has to happen.
pub(crate) const SOON: Duration = Duration::from_secs(60);
/// A lease that does not end before the test does.
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

/// Tries again until `found` gives something.
pub(crate) async fn until<T>(what: &str, mut found: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + SOON;
    loop {
        if let Some(found) = found().await {
            return found;
        }
        assert!(Instant::now() < deadline, "{what} takes too long");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
