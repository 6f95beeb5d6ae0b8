//! The audit trail, the newest entry first.

use axum::{Json, extract::State};
use raddle_broker::PeekRequest;
use raddle_model::QueueName;
use serde::Deserialize;
use serde_json::Value;

use super::{
    extract::Params,
    hold::AsOf,
    reply::{Page, limit},
};
use crate::{audit::QUEUE, problem::Result, state::AppState};

/// How many entries are read at once.
const SLICE: u32 = 10_000;

/// Which entries.
#[derive(Deserialize)]
pub(super) struct AuditParams {
    limit: Option<u32>,
}

pub(super) async fn audit(
    State(state): State<AppState>,
    AsOf(as_of): AsOf,
    Params(params): Params<AuditParams>,
) -> Result<Json<Page>> {
    let limit = limit(params.limit) as usize;
    // Queues are read from the oldest message on; the trail is bounded.
    let (mut newest, mut after) = (std::collections::VecDeque::new(), 0);
    loop {
        let peek = PeekRequest {
            queue: QueueName::Free(QUEUE.into()),
            after,
            max: SLICE,
            wait: std::time::Duration::ZERO,
        };
        let slice = state.broker().peek(peek).await?;
        let is_last = slice.len() < SLICE as usize;
        for message in slice {
            after = message.id.as_u64();
            newest.push_front(message);
            newest.truncate(limit);
        }
        if is_last {
            break;
        }
    }
    let entries = newest.into_iter().filter_map(|message| {
        let mut entry: Value = serde_json::from_str(&message.body).ok()?;
        entry["id"] = message.id.to_string().into();
        Some(entry)
    });
    Ok(Json(Page::whole(entries, as_of)))
}
