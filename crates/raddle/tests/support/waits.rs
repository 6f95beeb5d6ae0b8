//! Waits with a timeout.

use std::time::Duration;

/// Fails a test that takes longer than `seconds`.
pub(crate) async fn within<F: Future>(seconds: u64, future: F) -> F::Output {
    tokio::time::timeout(Duration::from_secs(seconds), future)
        .await
        .expect("the test ends in time")
}

/// Waits until the condition holds, and fails after a minute.
pub(crate) async fn wait_until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), waiting)
        .await
        .unwrap_or_else(|_| panic!("timed out waiting until {what}"));
}
