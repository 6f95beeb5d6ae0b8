//! What an attempt chains by saying so, on its way to the broker.

use raddle_broker::{Broker, ChainRequest, Error};
use raddle_model::ExitStatus;
use tokio::time::{sleep, timeout};

use super::{
    attempt_tracing,
    output_forwarding::{OUTPUT_PATIENCE, OUTPUT_PAUSE},
};

/// Passes on what an attempt has chained, and tries again what may succeed later: the broker knows what it has heard before.
pub(super) async fn pass_on(broker: &dyn Broker, chain: ChainRequest) -> Result<(), ExitStatus> {
    loop {
        match broker.chain(chain.clone()).await {
            Ok(_) => return Ok(()),
            Err(error) if error.is_retryable() => {
                attempt_tracing::log!(error, chain.attempt_id, %error, "what is to follow a task cannot be kept yet");
                sleep(OUTPUT_PAUSE).await;
            }
            Err(error) => return Err(refused(&error)),
        }
    }
}

/// The same when the attempt is over, and nobody gives orders about it any more.
pub(super) async fn pass_on_at_last(
    broker: &dyn Broker,
    chain: ChainRequest,
) -> Option<Result<(), ExitStatus>> {
    timeout(OUTPUT_PATIENCE, pass_on(broker, chain)).await.ok()
}

/// How an attempt ends whose chain was not taken: what should follow it would be lost in silence otherwise.
fn refused(error: &Error) -> ExitStatus {
    let permanent = matches!(error, Error::Invalid(_) | Error::ChainFull { .. });
    ExitStatus::Error {
        message: format!("what it chained was not taken: {error}"),
        permanent,
    }
}

/// The same when it took too long.
pub(super) fn late() -> ExitStatus {
    ExitStatus::Error {
        message: "what it chained could not be kept for too long".into(),
        permanent: false,
    }
}

/// The same of an attempt in a sandbox. What it chained would run elsewhere.
pub(super) fn untrusted() -> ExitStatus {
    let message = "what runs in a sandbox can chain nothing, for that would run outside".into();
    ExitStatus::Error {
        message,
        permanent: true,
    }
}
