//! One-time codes: a link that `raddle web open` prints signs a browser in once.

use std::time::Duration;

use jiff::Timestamp;
use raddle_broker::Broker;
use raddle_model::QueueName;
use serde::{Deserialize, Serialize};

use super::{
    random_bytes, sha256, to_hex,
    token::{read_messages, remove_message},
};

/// The queue of the records.
pub(crate) const QUEUE: &str = "raddle.web.codes";
/// How long a code is valid.
pub const CODE_LIFETIME: Duration = Duration::from_secs(60);

#[derive(Serialize, Deserialize)]
struct Record {
    sha256: String,
    expires_at: Timestamp,
}

/// Stores a code that signs in as owner, and returns it. Who can call this can open the broker, and
/// so may do everything already.
pub async fn create_code(broker: &dyn Broker) -> raddle_broker::Result<String> {
    let code = to_hex(&random_bytes()[..16]);
    let record = Record {
        sha256: to_hex(&sha256(&code)),
        expires_at: Timestamp::now() + CODE_LIFETIME,
    };
    let body = serde_json::to_string(&record).expect("a record has only string keys");
    broker
        .put(QueueName::Free(QUEUE.into()), vec![body])
        .await?;
    Ok(code)
}

/// Uses a code up. Returns whether it was valid. Of several callers with one code, one gets in.
pub(super) async fn redeem_code(broker: &dyn Broker, code: &str) -> raddle_broker::Result<bool> {
    let (hash, now) = (to_hex(&sha256(code)), Timestamp::now());
    let mut is_valid = false;
    for message in read_messages(broker, QUEUE).await? {
        let record = serde_json::from_str::<Record>(&message.body).ok();
        let is_live = record
            .as_ref()
            .is_some_and(|record| now < record.expires_at);
        let is_this = record.is_some_and(|record| record.sha256 == hash);
        if (is_this || !is_live) && remove_message(broker, QUEUE, message).await? {
            is_valid |= is_this && is_live;
        }
    }
    Ok(is_valid)
}
