//! The event log: a page of it, or a stream that follows it.

use std::time::Duration;

use axum::{
    Extension, Json,
    extract::State,
    http::HeaderMap,
    response::{
        IntoResponse, Response,
        sse::{Event, Sse},
    },
};
use futures_util::{StreamExt, stream};
use raddle_model::TaskEvent;
use serde::Deserialize;

use super::{
    extract::Params,
    reply::{Page, limit},
    sse::{self, Guard},
};
use crate::{auth::Caller, problem::Result, state::AppState};

/// How many events are read at once.
const SLICE: u32 = 500;

/// Which events.
#[derive(Deserialize)]
pub(super) struct EventParams {
    after: Option<u64>,
    limit: Option<u32>,
}

pub(super) async fn events(
    State(state): State<AppState>,
    Extension(caller): Extension<Caller>,
    Params(params): Params<EventParams>,
    headers: HeaderMap,
) -> Result<Response> {
    if sse::is_asked_for(&headers) {
        let seen = sse::last_event_id(&headers).and_then(|id| id.parse().ok());
        let after = match seen.or(params.after) {
            Some(after) => after,
            None => state.broker().last_event().await?,
        };
        return follow(&state, caller, after);
    }
    let limit = limit(params.limit);
    let after = params.after.unwrap_or(0);
    let as_of = state.broker().last_event().await?;
    let events = state
        .broker()
        .events(Some(after), None, limit, Duration::ZERO)
        .await?;
    let next = events.last().filter(|_| events.len() == limit as usize);
    let next = next.map(|event| event.id.to_string());
    let page = Page {
        complete: next.is_none(),
        next,
        ..Page::whole(events, as_of)
    };
    Ok(Json(page).into_response())
}

/// Every event after `after`, in commit order. The id of an event of the stream is that of the log,
/// so that a reader that reconnects misses none and gets none twice.
fn follow(state: &AppState, caller: Caller, after: u64) -> Result<Response> {
    let guard = Guard::new(state, caller)?;
    let next = async move |(mut guard, after): (Guard, u64)| {
        let events = guard
            .wait(async |state, wait| {
                state
                    .broker()
                    .events(Some(after), None, SLICE, wait)
                    .await
                    .ok()
            })
            .await?;
        let after = events.last().map_or(after, |event| event.id.as_u64());
        Some((events, (guard, after)))
    };
    let events = stream::unfold((guard, after), next)
        .flat_map(|events| stream::iter(events.into_iter().map(as_event)));
    Ok(sse::response(Sse::new(events)))
}

fn as_event(event: TaskEvent) -> Result<Event, sse::Never> {
    let data = serde_json::to_string(&event).expect("an event has only string keys");
    Ok(Event::default()
        .id(event.id.to_string())
        .event("task")
        .data(data))
}
