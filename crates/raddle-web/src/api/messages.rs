//! Free queues: reading, writing and moving messages.

use axum::{
    Extension, Json,
    extract::{Path, State},
    response::{IntoResponse, Response},
};
use raddle_broker::{
    DeliveryOutcome,
    queues::{self, WEB_QUEUES, WriteOutcome},
};
use raddle_model::{QueueName, queue_name::QueueArg, tid::TidArg};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    extract::{Body, Params, resolve},
    hold::AsOf,
    reply::{MAX_LIMIT, Page, limit},
};
use crate::{
    audit::AuditNote,
    auth::{Caller, Right},
    problem::{Problem, Result},
    state::AppState,
};

/// The queue that a text names. The queues with tokens and codes are not for this interface, and
/// the audit trail is for those with the right to it.
pub(crate) async fn resolve_queue(
    state: &AppState,
    caller: &Caller,
    name: &str,
) -> Result<QueueName> {
    let queue = match name.parse::<QueueArg>() {
        Ok(QueueArg::Full(queue)) => queue,
        Ok(QueueArg::Short(short, port)) => QueueName::Task(
            resolve(state, &TidArg::Short(short).to_string()).await?,
            port,
        ),
        Err(error) => return Err(Problem::bad_request(error.to_string())),
    };
    let text = queue.to_string();
    if text.starts_with(WEB_QUEUES) {
        let why = format!("{text} holds secrets of this server");
        return Err(Problem::new(axum::http::StatusCode::FORBIDDEN, why)
            .with_hint("manage tokens with 'raddle web token'"));
    }
    if text == queues::AUDIT_QUEUE {
        caller.require(Right::Admin)?;
    }
    Ok(queue)
}

pub(super) async fn list(State(state): State<AppState>, AsOf(as_of): AsOf) -> Result<Json<Page>> {
    let mut counts = queues::list_counts(state.broker(), None).await?;
    counts.retain(|queue| queue.messages > 0);
    Ok(Json(Page::whole(counts, as_of)))
}

/// How many messages to read.
#[derive(Deserialize)]
pub(super) struct PeekParams {
    limit: Option<u32>,
}

pub(super) async fn peek(
    State(state): State<AppState>,
    Extension(caller): Extension<Caller>,
    AsOf(as_of): AsOf,
    Path(name): Path<String>,
    Params(params): Params<PeekParams>,
) -> Result<Json<Page>> {
    let queue = resolve_queue(&state, &caller, &name).await?;
    let limit = limit(params.limit);
    let mut messages = queues::peek(state.broker(), &queue, limit + 1).await?;
    let is_whole = messages.len() <= limit as usize;
    messages.truncate(limit as usize);
    Ok(Json(Page {
        complete: is_whole,
        ..Page::whole(messages, as_of)
    }))
}

/// Messages to write.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WriteRequest {
    messages: Vec<String>,
}

pub(super) async fn write(
    State(state): State<AppState>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    Body(WriteRequest { messages }): Body<WriteRequest>,
) -> Result<Response> {
    let queue = resolve_queue(&state, &caller, &name).await?;
    if let Some(right) = right_to_write(&queue) {
        caller.require(right)?;
    }
    if messages.len() > MAX_LIMIT as usize {
        return Err(Problem::bad_request(format!(
            "{} messages are too many: send at most {MAX_LIMIT} at once",
            messages.len()
        )));
    }
    let count = messages.len() as u64;
    let written = queues::write(state.broker(), &queue, messages).await?;
    let records: Vec<Value> = written.iter().map(write_record).collect();
    Ok(noted(&name, count, Json(records)))
}

/// The right that a message to this queue needs besides, because it runs a task or controls one.
pub(crate) fn right_to_write(queue: &QueueName) -> Option<Right> {
    use raddle_model::queue_name::{ManagerQueue, SystemQueue, TaskQueue};
    match (queue, queue.desk()) {
        (_, Some((_, ManagerQueue::Requests))) | (QueueName::Task(_, TaskQueue::Inbox), _) => {
            Some(Right::Submit)
        }
        (QueueName::Task(_, TaskQueue::CtrlIn), _)
        | (QueueName::System(SystemQueue::Control), _)
        | (_, Some((_, ManagerQueue::Control))) => Some(Right::Control),
        _ => None,
    }
}

fn write_record(written: &WriteOutcome) -> Value {
    match written {
        WriteOutcome::Stored(id) => json!({ "id": id }),
        WriteOutcome::Control(tid, DeliveryOutcome::Applied(state)) => {
            json!({ "tid": tid, "delivered": "applied", "state": state })
        }
        WriteOutcome::Control(tid, DeliveryOutcome::Sent) => {
            json!({ "tid": tid, "delivered": "sent" })
        }
    }
}

pub(super) async fn clear(
    State(state): State<AppState>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
) -> Result<Response> {
    let queue = resolve_queue(&state, &caller, &name).await?;
    let deleted = queues::delete(state.broker(), &queue).await?;
    Ok(noted(&name, deleted, Json(json!({ "deleted": deleted }))))
}

/// Where to move messages.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MoveRequest {
    to: String,
    max: Option<u32>,
}

pub(super) async fn move_messages(
    State(state): State<AppState>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    Body(MoveRequest { to, max }): Body<MoveRequest>,
) -> Result<Response> {
    let from = resolve_queue(&state, &caller, &name).await?;
    let into = resolve_queue(&state, &caller, &to).await?;
    if let Some(right) = right_to_write(&into) {
        caller.require(right)?;
    }
    let max = max.unwrap_or(u32::MAX);
    let moved = queues::move_messages(state.broker(), &from, &into, max).await?;
    let selection = format!("{name} to {to}");
    Ok(noted(&selection, moved, Json(json!({ "moved": moved }))))
}

fn noted(selection: &str, count: u64, reply: impl IntoResponse) -> Response {
    let note = AuditNote {
        selection: Some(selection.into()),
        count: Some(count),
        reason: None,
    };
    (axum::Extension(note), reply).into_response()
}
