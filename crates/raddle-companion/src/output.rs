//! Requests about the output and the events of tasks.

use std::time::Duration;

use raddle_broker::{Broker, OutputStream};
use raddle_client::wait::{MAX_WAIT, TaskFollower};
use serde_json::json;

use crate::{
    Failure,
    connection::{Replier, Success},
    tasks::find,
};

/// The most output that one reply holds: a frame has to hold it.
const MAX_LOGS: usize = 16 * 1024 * 1024;

pub(crate) async fn logs(
    broker: &dyn Broker,
    tid: &str,
    stream: Option<OutputStream>,
) -> Result<Success, Failure> {
    let mut follower = TaskFollower::new(find(broker, tid).await?);
    let mut bytes = Vec::new();
    loop {
        let update = follower.next(broker, Duration::ZERO).await?;
        for chunk in &update.output {
            if stream.is_none_or(|stream| stream == chunk.stream) {
                bytes.extend_from_slice(&chunk.bytes);
            }
        }
        if bytes.len() > MAX_LOGS {
            return Err(Failure::invalid(format!(
                "the output of task {tid} is longer than 16 MiB: follow it, or use 'raddle logs {tid}'"
            )));
        }
        let is_at_end = update.output.is_empty() && update.events.is_empty();
        if update.done.is_some() || is_at_end {
            return Ok((json!(null), Some(bytes)));
        }
    }
}

pub(crate) async fn follow(
    broker: &dyn Broker,
    tid: &str,
    replier: &Replier,
) -> Result<Success, Failure> {
    let mut follower = TaskFollower::new(find(broker, tid).await?);
    loop {
        let update = follower.next(broker, MAX_WAIT).await?;
        for event in &update.events {
            replier.item(&json!({ "event": event }), None).await;
        }
        for chunk in &update.output {
            let head = json!({ "stream": chunk.stream, "attempt": chunk.attempt });
            replier.item(&head, Some(&chunk.bytes)).await;
        }
        if let Some(state) = update.done {
            return Ok((json!({ "state": state }), None));
        }
    }
}
