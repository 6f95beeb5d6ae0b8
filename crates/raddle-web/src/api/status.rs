//! Counts, workers, queues, pools, and the checks of the doctor.

use axum::{
    Extension, Json,
    extract::{Path, State},
    http::StatusCode,
};
use raddle_broker::queues;
use raddle_model::QueueName;
use raddle_view::{
    doctor::{Diagnosis, DoctorOptions, diagnose},
    overview::Overview,
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    extract::{Params, TaskPath},
    hold::AsOf,
    messages::resolve_queue,
    reply::Page,
    tasks::parse_query,
};
use crate::{
    auth::{Caller, Right},
    problem::{Problem, Result},
    state::AppState,
};

pub(super) async fn status(State(state): State<AppState>) -> Result<Json<Overview>> {
    let url = state.options.broker_url.clone();
    Ok(Json(Overview::read(state.broker(), url).await?))
}

/// Which queues to list.
#[derive(Deserialize)]
pub(super) struct QueueParams {
    pattern: Option<String>,
}

pub(super) async fn queues(
    State(state): State<AppState>,
    AsOf(as_of): AsOf,
    Params(params): Params<QueueParams>,
) -> Result<Json<Page>> {
    let counts = queues::list_counts(state.broker(), params.pattern.as_deref()).await?;
    Ok(Json(Page::whole(counts, as_of)))
}

pub(super) async fn queue(
    State(state): State<AppState>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
) -> Result<Json<queues::QueueStats>> {
    let queue: QueueName = resolve_queue(&state, &caller, &name).await?;
    Ok(Json(queues::stats(state.broker(), &queue).await?))
}

pub(super) async fn workers(
    State(state): State<AppState>,
    AsOf(as_of): AsOf,
) -> Result<Json<Page>> {
    let workers = state.broker().workers().await?;
    Ok(Json(Page::whole(workers, as_of)))
}

pub(super) async fn worker(
    State(state): State<AppState>,
    TaskPath(tid): TaskPath,
) -> Result<Json<Value>> {
    let workers = state.broker().workers().await?;
    let found = workers.into_iter().find(|worker| worker.tid == tid);
    found.map(|worker| Json(json!(worker))).ok_or_else(|| {
        let why = format!("no live worker has the id {tid}: see 'raddle worker list'");
        Problem::not_found(why).with_tid(tid)
    })
}

#[cfg(feature = "pool")]
pub(super) async fn pools(AsOf(as_of): AsOf) -> Result<Json<Page>> {
    let pools = raddle_view::pool::local_pools()
        .map_err(|error| Problem::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string()))?;
    let records = pools.iter().map(raddle_view::pool::FoundWorkers::record);
    Ok(Json(Page::whole(records, as_of)))
}

#[cfg(feature = "pool")]
pub(super) async fn pool(AsOf(as_of): AsOf, Path(name): Path<String>) -> Result<Json<Page>> {
    let pools = raddle_view::pool::local_pools()
        .map_err(|error| Problem::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string()))?;
    let pool = pools
        .into_iter()
        .find(|pool| pool.name == name)
        .ok_or_else(|| {
            Problem::not_found(format!(
                "no pool '{name}' runs here: see 'raddle pool list'"
            ))
        })?;
    let queried = raddle_view::pool::query::query_all(&pool.workers, None).await;
    Ok(Json(Page::whole(
        queried.iter().map(|worker| worker.record(&name)),
        as_of,
    )))
}

#[cfg(not(feature = "pool"))]
pub(super) async fn pools(AsOf(as_of): AsOf) -> Result<Json<Page>> {
    Ok(Json(Page::whole(Vec::<Value>::new(), as_of)))
}

#[cfg(not(feature = "pool"))]
pub(super) async fn pool(Path(name): Path<String>) -> Result<Json<Page>> {
    Err(Problem::not_found(format!("no pool '{name}' runs here")))
}

pub(super) async fn doctor(State(state): State<AppState>) -> Result<Json<Diagnosis>> {
    let Some(url) = &state.options.doctor else {
        return Err(Problem::new(
            StatusCode::NOT_FOUND,
            "this server does not know the project: run 'raddle doctor' where it is",
        ));
    };
    let diagnosis = diagnose(DoctorOptions {
        url,
        url_source: "of this server".into(),
        missing_database: None,
        group_file: None,
    })
    .await?;
    Ok(Json(diagnosis))
}

/// Which failures, and how far back.
#[derive(Deserialize)]
pub(super) struct FailureParams {
    q: Option<String>,
}

pub(super) async fn failures(
    State(state): State<AppState>,
    Extension(caller): Extension<Caller>,
    AsOf(as_of): AsOf,
    Params(params): Params<FailureParams>,
) -> Result<Json<Page>> {
    let query = parse_query(params.q.as_deref())?;
    let mut list = state
        .failures
        .lock()
        .await
        .read(state.broker(), &query)
        .await?;
    if !caller.may(Right::SeeData) {
        // Lines of the error output.
        for group in &mut list.items {
            group.line.clear();
            group.sample_line.clear();
        }
    }
    Ok(Json(Page {
        looked_at: list.looked_at,
        complete: list.complete,
        ..Page::whole(list.items, as_of)
    }))
}
