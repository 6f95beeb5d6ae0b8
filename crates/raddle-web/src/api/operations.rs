//! Operations: one action on many tasks, on a frozen selection.
//!
//! The broker keeps an operation, and any process may go on with it. This server advances those
//! that it has started, and at its own start those that a killed server has left.

use std::time::Duration;

use axum::{
    Extension, Json,
    extract::{Path, State},
    http::{StatusCode, header::LOCATION},
    response::{IntoResponse, Response},
};
use raddle_broker::operations::{
    NewOperation, OperationAction, OperationSelection, OperationState, OperationView,
};
use raddle_model::{TaskQuery, Tid};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{
    extract::{Body, Params, resolve},
    hold::AsOf,
    reply::{Page, limit},
    tasks::parse_query,
};
use crate::{
    audit::AuditNote,
    auth::{Caller, Right},
    problem::{Problem, Result},
    state::AppState,
};

/// How many tasks are looked at in one call.
const PORTION: u32 = 1000;
/// How many tasks a dry run shows.
const SAMPLE: usize = 10;
/// Pause after a call that failed.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// The most operations that are looked at for one that is not over.
const MAX_OPERATIONS: u32 = 1000;

/// An operation to start.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OperationRequest {
    action: OperationAction,
    tids: Option<Vec<String>>,
    q: Option<String>,
    /// The `as_of` of the list that the caller has seen.
    as_of: Option<String>,
    /// How many tasks the caller expects.
    expect: Option<u64>,
    #[serde(default)]
    reason: String,
    #[serde(default)]
    dry_run: bool,
}

fn right(action: &OperationAction) -> Right {
    match action {
        OperationAction::Retry => Right::Retry,
        OperationAction::Delete => Right::Delete,
        _ => Right::Control,
    }
}

pub(super) async fn start(
    State(state): State<AppState>,
    Extension(caller): Extension<Caller>,
    Body(asked): Body<OperationRequest>,
) -> Result<Response> {
    caller.require(right(&asked.action))?;
    let as_of = match &asked.as_of {
        Some(id) => id
            .parse()
            .map_err(|_| Problem::bad_request("'as_of' is not the id of an event"))?,
        None => state.broker().last_event().await?,
    };
    let as_of = Tid::from_u64(as_of).ok_or_else(|| Problem::bad_request("there is no task yet"))?;
    let note = AuditNote {
        selection: Some(match (&asked.tids, &asked.q) {
            (Some(tids), _) => format!("{} ids", tids.len()),
            (None, query) => query.clone().unwrap_or_default(),
        }),
        count: asked.expect,
        reason: Some(asked.reason.clone()).filter(|reason| !reason.is_empty()),
    };
    let request = NewOperation {
        selection: selection(&state, asked.tids, asked.q.as_deref()).await?,
        action: asked.action,
        as_of,
        expected: asked.expect,
        reason: asked.reason,
        by: caller.name.clone(),
    };
    request
        .validate()
        .map_err(|error| Problem::new(StatusCode::UNPROCESSABLE_ENTITY, error.to_string()))?;
    if asked.dry_run || asked.expect.is_some() {
        let (count, sample) = count(&state, &request).await?;
        if asked.dry_run {
            let record = json!({ "count": count, "sample": sample, "as_of": as_of.to_string() });
            return Ok((Extension(note), Json(record)).into_response());
        }
        if let Some(expected) = asked.expect.filter(|expected| *expected != count) {
            let why = format!("{count} tasks are selected now, and not {expected}: look again");
            return Err(Problem::new(StatusCode::CONFLICT, why));
        }
    }
    let id = state.broker().start_operation(request).await?;
    spawn(&state, id).await;
    let location = state.url(&format!("/api/v1/operations/{id}"));
    let found = state.broker().operations(Some(id), 1).await?;
    Ok((
        StatusCode::ACCEPTED,
        Extension(note),
        [(LOCATION, location)],
        Json(json!(found.first())),
    )
        .into_response())
}

async fn selection(
    state: &AppState,
    tids: Option<Vec<String>>,
    query: Option<&str>,
) -> Result<OperationSelection> {
    match (tids, query) {
        (Some(texts), None) => {
            let mut tids = Vec::new();
            for text in &texts {
                tids.push(resolve(state, text).await?);
            }
            Ok(OperationSelection::Tasks(tids))
        }
        (None, Some(text)) => {
            let query: TaskQuery = parse_query(Some(text))?;
            Ok(OperationSelection::Query(query))
        }
        _ => Err(Problem::bad_request("give either 'tids' or 'q'")),
    }
}

/// How many tasks an operation would select, and the newest of them.
async fn count(state: &AppState, request: &NewOperation) -> Result<(u64, Vec<Tid>)> {
    let mut filter = OperationView::new(request.as_of, request.clone()).filter(PORTION);
    let (mut count, mut sample) = (0, Vec::new());
    loop {
        let page = state.broker().find_tasks(filter.clone()).await?;
        count += page.tasks.len() as u64;
        let room = SAMPLE - sample.len();
        sample.extend(page.tasks.iter().take(room).map(|task| task.tid));
        match page.next {
            Some(next) => filter.before = Some(next),
            None => return Ok((count, sample)),
        }
    }
}

/// Goes on with the operations that are not over.
pub(crate) async fn resume_all(state: &AppState) {
    match state.broker().operations(None, MAX_OPERATIONS).await {
        Ok(found) => {
            let running = found
                .iter()
                .filter(|view| view.state == OperationState::Running);
            for view in running {
                spawn(state, view.id).await;
            }
        }
        Err(error) => tracing::warn!(%error, "cannot read the operations that are not over"),
    }
}

/// Advances an operation beside the requests, until it is over or the server stops.
async fn spawn(state: &AppState, id: Tid) {
    let mut advancing = state.operations.lock().await;
    while advancing.try_join_next().is_some() {}
    // Without a handle to itself: the set is part of the state.
    let (broker, stopping) = (state.shared_broker(), state.stopping_receiver());
    advancing.spawn(async move {
        while !*stopping.borrow() {
            match broker.advance_operation(id, PORTION).await {
                Ok(view) if view.state == OperationState::Running => {}
                Ok(_) => return,
                Err(error) => {
                    tracing::warn!(%error, operation = %id, "cannot advance an operation");
                    sleep(RETRY_PAUSE).await;
                }
            }
        }
    });
}

/// How many operations to list.
#[derive(Deserialize)]
pub(super) struct OperationParams {
    limit: Option<u32>,
}

pub(super) async fn list(
    State(state): State<AppState>,
    AsOf(as_of): AsOf,
    Params(params): Params<OperationParams>,
) -> Result<Json<Page>> {
    let found = state.broker().operations(None, limit(params.limit)).await?;
    Ok(Json(Page::whole(found, as_of)))
}

pub(super) async fn show(
    State(state): State<AppState>,
    Path(id): Path<String>,
) -> Result<Json<OperationView>> {
    find(&state, &id).await.map(Json)
}

async fn find(state: &AppState, id: &str) -> Result<OperationView> {
    let absent = || {
        Problem::not_found(format!(
            "there is no operation {id}: see 'raddle operation list'"
        ))
    };
    let parsed: Tid = id.parse().map_err(|_| absent())?;
    let found = state.broker().operations(Some(parsed), 1).await?.pop();
    found.ok_or_else(absent)
}

pub(super) async fn cancel(
    State(state): State<AppState>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Json<Value>> {
    let view = find(&state, &id).await?;
    caller.require(right(&view.request.action))?;
    let view = state.broker().cancel_operation(view.id).await?;
    Ok(Json(json!(view)))
}
