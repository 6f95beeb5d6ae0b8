//! Cancellation of the running task, for functions that clean up before they end.

use tokio::signal::unix::{SignalKind, signal};

use super::context;
use crate::host;

/// Whether the running task was cancelled: it was stopped, its worker is stopping, or it has timed
/// out. A function that calls this is not killed by the SIGTERM and has the grace period to end.
/// Outside of a task, `false`.
pub fn is_cancelled() -> bool {
    if let Some(attempt) = host::context::current() {
        return attempt.is_cancelled();
    }
    context::has_reply() && raddle_runner::is_sigterm_received()
}

/// Returns when the running task is cancelled, see [`is_cancelled`]. Outside of a task it never
/// returns.
pub async fn cancelled() {
    if let Some(attempt) = host::context::current() {
        return attempt.cancelled().await;
    }
    if !context::has_reply() {
        std::future::pending::<()>().await;
    }
    // Called first, so that SIGTERM is recorded from now on.
    if raddle_runner::is_sigterm_received() {
        return;
    }
    match signal(SignalKind::terminate()) {
        Ok(mut terminate) if !raddle_runner::is_sigterm_received() => _ = terminate.recv().await,
        Ok(_) => {}
        // No signal handler can be installed: behave as if the task is never cancelled.
        Err(_) => std::future::pending::<()>().await,
    }
}
