//! Calls to pools.

use std::{collections::BTreeMap, future::Future, time::Duration};

use futures_util::FutureExt;
use raddle_model::Trace;
use raddle_rpc::{CallError, RawCall, RawFailure, RawReply};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    Failure,
    connection::{Replier, Success},
    service::Shared,
};

/// The most items, and bytes, that one message holds.
const MAX_ITEMS: usize = 256;
const MAX_ITEM_BYTES: usize = 256 * 1024;

/// A call.
#[derive(Debug, Deserialize)]
pub(crate) struct CallOptions {
    pool: u64,
    routine: String,
    #[serde(default)]
    timeout_ms: Option<u64>,
    #[serde(default)]
    key: Option<String>,
    #[serde(default)]
    traceparent: Option<String>,
    /// Context values, in JSON.
    #[serde(default)]
    values: BTreeMap<String, Value>,
}

/// Makes a call. Items of a stream are sent as they come, several in one message if they are ready:
/// the payload is an array of them.
pub(crate) async fn call(
    shared: &Shared,
    options: CallOptions,
    payload: Option<Vec<u8>>,
    replier: &Replier,
) -> Result<Success, Failure> {
    let pool = shared.pools.get(options.pool)?;
    let mut call = RawCall::new(options.routine, payload.unwrap_or_else(|| vec![0x90])).on(&*pool);
    drop(pool);
    if let Some(limit) = options.timeout_ms {
        call = call.timeout(Duration::from_millis(limit));
    }
    if let Some(key) = options.key {
        call = call.key(key);
    }
    if let Some(parent) = options.traceparent.and_then(|text| text.parse().ok()) {
        call = call.trace(Trace {
            parent,
            state: None,
        });
    }
    if !options.values.is_empty() {
        let packed = |(name, value): (String, Value)| {
            let value = raddle_model::routine::Encoding::MessagePack.write(&value);
            value.map(|value| (name, value))
        };
        let values = options.values.into_iter().map(packed);
        call = call.values(values.collect::<Result<_, _>>().map_err(Failure::invalid)?);
    }
    let mut items = Items::default();
    loop {
        // Wait only when there is nothing to send.
        let next = match items.count {
            0 => Some(call.next().await),
            MAX_ITEMS.. => None,
            _ if items.bytes.len() > MAX_ITEM_BYTES => None,
            _ => ready_now(call.next()),
        };
        match next {
            Some(Some(Ok(RawReply::Item(item)))) => {
                if let Ok(permit) = replier.credit.acquire().await {
                    permit.forget();
                }
                items.push(&item);
            }
            Some(Some(Ok(RawReply::Result(value)))) => return Ok((Value::Null, Some(value))),
            Some(Some(Err(error))) => {
                items.send(replier).await;
                return Err(error.into());
            }
            Some(None) => {
                items.send(replier).await;
                return Ok((Value::Null, None));
            }
            None => items.send(replier).await,
        }
    }
}

/// The output of a future, if it has one now.
fn ready_now<T>(future: impl Future<Output = T>) -> Option<T> {
    future.now_or_never()
}

/// Items that are sent together.
#[derive(Default)]
struct Items {
    bytes: Vec<u8>,
    count: usize,
}

impl Items {
    fn push(&mut self, item: &[u8]) {
        if self.count == 0 {
            // An array in MessagePack with a length of four bytes.
            self.bytes.extend([0xdd, 0, 0, 0, 0]);
        }
        self.bytes.extend_from_slice(item);
        self.count += 1;
    }

    async fn send(&mut self, replier: &Replier) {
        if self.count > 0 {
            let count = u32::try_from(self.count).unwrap_or(u32::MAX);
            self.bytes[1..5].copy_from_slice(&count.to_be_bytes());
            replier.item(&json!(self.count), Some(&self.bytes)).await;
            self.bytes.clear();
            self.count = 0;
        }
    }
}

impl From<CallError<RawFailure>> for Failure {
    fn from(error: CallError<RawFailure>) -> Self {
        let kind = match &error {
            CallError::Failed(_) => "failed",
            CallError::Panicked { .. } => "panicked",
            CallError::TimedOut => "timed_out",
            CallError::Cancelled | CallError::Lost { .. } => "lost",
            CallError::NoWorkers(_) | CallError::NoPool => "no_workers",
            CallError::UnknownRoutine(_) | CallError::Version(_) => "unknown_routine",
            CallError::Denied(_) => "denied",
            CallError::Arguments(_) => "arguments",
            _ => "call",
        };
        let may_have_begun = error.may_have_begun();
        let message = error.to_string();
        let value = match error {
            CallError::Failed(failure) if !failure.value.is_empty() => Some(failure.value),
            _ => None,
        };
        Self {
            kind,
            message,
            hint: None,
            may_have_begun,
            value,
        }
    }
}
