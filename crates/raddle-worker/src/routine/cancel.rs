//! Whether a task was asked to end, for functions that want to end in good order.

use tokio::signal::unix::{SignalKind, signal};

use super::context;
use crate::host;

/// Whether this task was asked to end: it was stopped, its worker was told to give back what it runs, or it has taken too long. A function that asks is not ended by
/// that, and has as long as its worker leaves it. Outside of a task, `false`.
pub fn is_cancelled() -> bool {
    if let Some(attempt) = host::context::current() {
        return attempt.is_cancelled();
    }
    context::is_open() && raddle_runner::is_terminated()
}

/// Returns when this task is asked to end, as [`is_cancelled`] has it. Outside of a task it never returns.
pub async fn cancelled() {
    if let Some(attempt) = host::context::current() {
        return attempt.cancelled().await;
    }
    if !context::is_open() {
        std::future::pending::<()>().await;
    }
    // Asked first, so that the signal is noted from here on.
    if raddle_runner::is_terminated() {
        return;
    }
    match signal(SignalKind::terminate()) {
        Ok(mut terminate) if !raddle_runner::is_terminated() => _ = terminate.recv().await,
        Ok(_) => {}
        // Nobody can be told: as if it was not asked.
        Err(_) => std::future::pending::<()>().await,
    }
}
