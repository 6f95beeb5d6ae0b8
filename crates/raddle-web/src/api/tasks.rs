//! Tasks: lists, and single ones.

use axum::{Extension, Json, extract::State, http::header::CONTENT_TYPE, response::IntoResponse};
use raddle_model::{TaskQuery, query::QueryError};
use raddle_view::{
    events::{AttemptSpan, attempts as spans, task_events},
    find::{get_task, get_task_or_worker},
    task::{result_record, task_record},
    task_detail::TaskExplanation,
    tasks::{TaskListOptions, list_tasks},
    tree::TaskTree,
};
use serde::Deserialize;
use serde_json::Value;

use super::{
    extract::{Params, TaskPath, resolve},
    hold::AsOf,
    reply::{Page, limit, visible_task},
};
use crate::{
    auth::Caller,
    problem::{Problem, Result},
    state::AppState,
};

/// Which tasks to list.
#[derive(Deserialize)]
pub(super) struct ListParams {
    q: Option<String>,
    limit: Option<u32>,
    cursor: Option<String>,
    fields: Option<String>,
    #[serde(default)]
    all: Option<u8>,
}

pub(super) async fn list(
    State(state): State<AppState>,
    Extension(caller): Extension<Caller>,
    AsOf(as_of): AsOf,
    Params(params): Params<ListParams>,
) -> Result<Json<Page>> {
    let query = parse_query(params.q.as_deref())?;
    let before = match &params.cursor {
        Some(cursor) => Some(resolve(&state, cursor).await?),
        None => None,
    };
    let options = TaskListOptions {
        before,
        limit: limit(params.limit),
        services: params.all == Some(1),
        ..TaskListOptions::default()
    };
    let list = list_tasks(state.broker(), &query, &options).await?;
    let visible = |task| Value::Object(visible_task(&caller, task_record(task)));
    let page = Page {
        items: list.items.iter().map(visible).collect(),
        next: list.next.map(|tid| tid.to_string()),
        as_of: as_of.to_string(),
        looked_at: list.looked_at,
        complete: list.complete,
    };
    Ok(page.trimmed(params.fields.as_deref()))
}

/// Parses a query of the query language.
pub(crate) fn parse_query(text: Option<&str>) -> Result<TaskQuery> {
    let text = text.unwrap_or_default();
    text.parse().map_err(|error: QueryError| Problem {
        position: Some(error.position),
        ..Problem::bad_request(error.to_string())
    })
}

pub(super) async fn show(
    State(state): State<AppState>,
    Extension(caller): Extension<Caller>,
    TaskPath(tid): TaskPath,
) -> Result<Json<Value>> {
    let (task, _) = get_task_or_worker(state.broker(), tid).await?;
    Ok(Json(visible_task(&caller, task_record(&task)).into()))
}

pub(super) async fn result(
    State(state): State<AppState>,
    TaskPath(tid): TaskPath,
) -> Result<Json<Value>> {
    let task = get_task(state.broker(), tid).await?;
    if !task.state.is_terminal() {
        let why = format!("task {tid} is not finished, but {}", task.state);
        return Err(Problem::new(axum::http::StatusCode::CONFLICT, why)
            .with_hint("wait for it with '?wait=30s&after=ID', where ID is the last 'as_of'")
            .with_tid(tid));
    }
    Ok(Json(result_record(state.broker(), &task).await?))
}

pub(super) async fn explain(
    State(state): State<AppState>,
    TaskPath(tid): TaskPath,
) -> Result<Json<TaskExplanation>> {
    let task = get_task(state.broker(), tid).await?;
    Ok(Json(TaskExplanation::read(state.broker(), &task).await?))
}

pub(super) async fn tree(
    State(state): State<AppState>,
    TaskPath(tid): TaskPath,
) -> Result<impl IntoResponse> {
    let task = get_task(state.broker(), tid).await?;
    let tree = TaskTree::read(state.broker(), Some(task)).await?;
    let text = tree.to_json(&[tid], &[]);
    Ok(([(CONTENT_TYPE, "application/json")], text))
}

/// Which events to list.
#[derive(Deserialize)]
pub(super) struct EventParams {
    after: Option<u64>,
    limit: Option<u32>,
}

pub(super) async fn events(
    State(state): State<AppState>,
    AsOf(as_of): AsOf,
    TaskPath(tid): TaskPath,
    Params(params): Params<EventParams>,
) -> Result<Json<Page>> {
    let (limit, after) = (limit(params.limit), params.after.unwrap_or(0));
    // The events of a task begin with its own id.
    let after = after.max(tid.as_u64() - 1);
    let wait = std::time::Duration::ZERO;
    let events = state
        .broker()
        .events(Some(after), Some(tid), limit, wait)
        .await?;
    let next = events.last().filter(|_| events.len() == limit as usize);
    let next = next.map(|event| event.id.to_string());
    Ok(Json(Page {
        complete: next.is_none(),
        next,
        ..Page::whole(events, as_of)
    }))
}

pub(super) async fn attempts(
    State(state): State<AppState>,
    TaskPath(tid): TaskPath,
    AsOf(as_of): AsOf,
) -> Result<Json<Page>> {
    get_task(state.broker(), tid).await?;
    let events = task_events(state.broker(), tid).await?;
    let spans: Vec<AttemptSpan> = spans(&events);
    Ok(Json(Page::whole(spans, as_of)))
}
