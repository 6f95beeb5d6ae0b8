//! What an attempt chains by saying so, on its way to the broker.

use raddle_broker::{Broker, Chain, Error};
use raddle_core::Exit;
use tokio::time::{sleep, timeout};

use super::{
    hand,
    keeping::{OUTPUT_PATIENCE, OUTPUT_PAUSE},
};

/// Why what an attempt chained was not taken. It fails with that: what should follow it would be lost in silence otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    message: String,
    /// Whether it would be refused again.
    permanent: bool,
}

/// Passes on what an attempt has chained, and tries again what may succeed later: the broker knows what it has heard before.
pub(super) async fn pass_on(broker: &dyn Broker, chain: Chain) -> Result<(), Refusal> {
    loop {
        match broker.chain(chain.clone()).await {
            Ok(_) => return Ok(()),
            Err(error) if error.is_retryable() => {
                hand::log!(error, chain.fence, %error, "what is to follow a task cannot be kept yet");
                sleep(OUTPUT_PAUSE).await;
            }
            Err(error) => return Err(Refusal::of(&error)),
        }
    }
}

/// The same when the attempt is over, and nobody gives orders about it any more.
pub(super) async fn pass_on_at_last(broker: &dyn Broker, chain: Chain) -> Option<Result<(), Refusal>> {
    timeout(OUTPUT_PATIENCE, pass_on(broker, chain)).await.ok()
}

impl Refusal {
    fn of(error: &Error) -> Self {
        let permanent = matches!(error, Error::Invalid(_) | Error::ChainFull { .. });
        Self { message: format!("what it chained was not taken: {error}"), permanent }
    }

    /// It took too long.
    pub(super) fn late() -> Self {
        Self { message: "what it chained could not be kept for too long".into(), permanent: false }
    }

    /// It runs where nobody trusts it. What it chained would run elsewhere.
    pub(super) fn untrusted() -> Self {
        let message = "what runs in a sandbox can chain nothing, for that would run outside".into();
        Self { message, permanent: true }
    }
}

impl From<Refusal> for Exit {
    fn from(Refusal { message, permanent }: Refusal) -> Self {
        Self::Error { message, permanent }
    }
}
