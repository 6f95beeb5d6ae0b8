//! Storing tasks that an attempt has chained.

use raddle_broker::{Broker, ChainRequest, Error};
use raddle_model::ExitStatus;
use tokio::time::{sleep, timeout};

use super::{
    attempt_tracing,
    output_forwarding::{OUTPUT_RETRY_PAUSE, OUTPUT_TIMEOUT},
};

/// Stores chained tasks, and retries errors that may pass. Retries are safe: the broker compares
/// with what it has already stored.
pub(super) async fn store_chain(
    broker: &dyn Broker,
    chain: ChainRequest,
) -> Result<(), ExitStatus> {
    loop {
        match broker.chain(chain.clone()).await {
            Ok(_) => return Ok(()),
            Err(error) if error.is_retryable() => {
                attempt_tracing::log!(error, chain.attempt_id, %error, "chained tasks cannot be stored yet");
                sleep(OUTPUT_RETRY_PAUSE).await;
            }
            Err(error) => return Err(chain_refused(&error)),
        }
    }
}

/// Stores chained tasks after the end of the attempt, when no command can interrupt the wait.
/// Returns `None` after [`OUTPUT_TIMEOUT`].
pub(super) async fn store_chain_in_time(
    broker: &dyn Broker,
    chain: ChainRequest,
) -> Option<Result<(), ExitStatus>> {
    timeout(OUTPUT_TIMEOUT, store_chain(broker, chain))
        .await
        .ok()
}

/// The end of an attempt whose chained tasks were refused. Without it they would be lost silently.
fn chain_refused(error: &Error) -> ExitStatus {
    let permanent = matches!(error, Error::Invalid(_) | Error::ChainFull { .. });
    ExitStatus::Error {
        message: format!("its chained tasks were refused: {error}"),
        permanent,
        retry_after_ms: None,
    }
}

/// The end of an attempt whose chained tasks could not be stored in time.
pub(super) fn chain_timed_out() -> ExitStatus {
    ExitStatus::Error {
        message: "its chained tasks could not be stored in time".into(),
        permanent: false,
        retry_after_ms: None,
    }
}

/// The end of an attempt in a sandbox that chains: the chained task would run outside the sandbox.
pub(super) fn chain_from_sandbox() -> ExitStatus {
    let message = "a task in a sandbox cannot chain: the chained task would run outside it".into();
    ExitStatus::Error {
        message,
        permanent: true,
        retry_after_ms: None,
    }
}
