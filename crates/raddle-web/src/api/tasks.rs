//! Tasks: lists, and single ones.

use axum::{Extension, Json, extract::State, http::header::CONTENT_TYPE, response::IntoResponse};
use jiff::Timestamp;
use raddle_broker::TaskFilter;
use raddle_model::{
    TaskQuery, TaskView, Tid,
    query::{FlagField, QueryError, TextField},
};
use raddle_view::{
    explain::ExplainRecord,
    find::{get_task, get_task_or_worker},
    task::{result_record, task_record},
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

/// How many records one request looks at.
const MAX_LOOKED_AT: u64 = 20_000;
/// How many records are read at once.
const SLICE: u32 = 500;

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
    let (limit, all) = (limit(params.limit), params.all == Some(1));
    let (tasks, next, looked_at) = find(&state, &query, before, limit, all).await?;
    let items = tasks
        .iter()
        .map(|task| Value::Object(visible_task(&caller, task_record(task))))
        .collect();
    let page = Page {
        items,
        complete: next.is_none(),
        next: next.map(|tid| tid.to_string()),
        as_of: as_of.to_string(),
        looked_at,
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

/// The next tasks that match a query, where the next look begins, and how many were looked at.
async fn find(
    state: &AppState,
    query: &TaskQuery,
    before: Option<Tid>,
    limit: u32,
    services: bool,
) -> Result<(Vec<TaskView>, Option<Tid>, u64)> {
    let now = Timestamp::now();
    let states = query.states();
    let mut filter = TaskFilter {
        states,
        queue: query.exact(TextField::Queue).map(str::to_owned),
        batch: query.exact(TextField::Batch).map(str::to_owned),
        dead: query.requires(FlagField::Dead, true),
        services,
        before,
        limit: SLICE,
        ..TaskFilter::default()
    };
    let (mut found, mut looked_at) = (Vec::new(), 0);
    loop {
        let slice = state.broker().tasks(filter.clone()).await?;
        looked_at += slice.len() as u64;
        let is_last = slice.len() < SLICE as usize;
        for task in slice {
            filter.before = Some(task.tid);
            if query.matches(&task, now) {
                found.push(task);
                if found.len() == limit as usize {
                    return Ok((found, filter.before, looked_at));
                }
            }
        }
        if is_last {
            return Ok((found, None, looked_at));
        }
        if looked_at >= MAX_LOOKED_AT {
            return Ok((found, filter.before, looked_at));
        }
    }
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
) -> Result<Json<ExplainRecord>> {
    let task = get_task(state.broker(), tid).await?;
    Ok(Json(ExplainRecord::read(state.broker(), &task).await?))
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
