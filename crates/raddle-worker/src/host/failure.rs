//! Why hosts do not start, where operators look for it: in the outbox of the manager of the worker,
//! or of the worker itself.

use std::time::Duration;

use jiff::Timestamp;
use raddle_broker::{Broker, PeekRequest, Result};
use raddle_model::{
    Tid,
    queue_name::{QueueName, TaskQueue},
};
use serde::{Deserialize, Serialize};

/// A host that does not start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HostStartFailure {
    /// The queues whose tasks it would run.
    pub queues: Vec<String>,
    /// What failed, for people.
    pub host_failure: String,
    /// When.
    pub at: Timestamp,
}

/// How many are kept for one manager.
const KEPT: u32 = 32;

/// Stores that a host does not start, for the manager or worker `owner`. Older failures make room.
pub async fn report_start_failure(
    broker: &dyn Broker,
    owner: Tid,
    queues: &[String],
    reason: &str,
) -> Result<()> {
    let failure = HostStartFailure {
        queues: queues.to_vec(),
        host_failure: reason.to_owned(),
        at: Timestamp::now(),
    };
    let body = serde_json::to_string(&failure).expect("it has only string keys");
    let stored = peek(broker, owner).await?.len();
    if let Some(surplus) = (stored + 1).checked_sub(KEPT as usize) {
        let max = surplus as u32;
        if max > 0 {
            broker.take(outbox(owner), max, Duration::ZERO).await?;
        }
    }
    broker.put(outbox(owner), vec![body]).await?;
    Ok(())
}

/// The failures that are stored for a manager or worker, oldest first.
pub async fn start_failures(broker: &dyn Broker, owner: Tid) -> Result<Vec<HostStartFailure>> {
    let bodies = peek(broker, owner).await?;
    Ok(bodies
        .iter()
        .filter_map(|body| serde_json::from_str(body).ok())
        .collect())
}

async fn peek(broker: &dyn Broker, owner: Tid) -> Result<Vec<String>> {
    let request = PeekRequest {
        queue: outbox(owner),
        max: 2 * KEPT,
        after: 0,
        wait: Duration::ZERO,
    };
    let messages = broker.peek(request).await?;
    Ok(messages.into_iter().map(|message| message.body).collect())
}

fn outbox(owner: Tid) -> QueueName {
    QueueName::Task(owner, TaskQueue::Outbox)
}
