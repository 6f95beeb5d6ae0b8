//! Schedules, and changes of them.

use axum::{
    Extension, Json,
    extract::{Path, State},
    http::{HeaderMap, StatusCode, header::IF_MATCH},
};
use raddle_broker::{ScheduleView, Submitted};
use raddle_client::schedule::{self, Error, PutOutcome};
use raddle_model::Schedule;
use raddle_view::schedule::{ScheduleDetail, schedule_record};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    extract::{Body, Params},
    hold::AsOf,
    reply::{Page, hide_spec},
};
use crate::{
    auth::{Caller, Right},
    problem::{Problem, Result},
    state::AppState,
};

/// How many due times are shown.
const UPCOMING: u8 = 5;

pub(super) async fn list(
    State(state): State<AppState>,
    Extension(caller): Extension<Caller>,
    AsOf(as_of): AsOf,
) -> Result<Json<Page>> {
    let schedules: Vec<ScheduleView> = state.broker().schedules(None).await?;
    let records = schedules
        .iter()
        .map(|view| visible(&caller, schedule_record(view)));
    Ok(Json(Page::whole(records, as_of)))
}

/// How many due times to show.
#[derive(Deserialize)]
pub(super) struct ShowParams {
    count: Option<u8>,
}

pub(super) async fn show(
    State(state): State<AppState>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    Params(params): Params<ShowParams>,
) -> Result<Json<Value>> {
    let count = params.count.unwrap_or(UPCOMING).into();
    let detail = ScheduleDetail::read(state.broker(), &name, count).await?;
    Ok(Json(visible(&caller, detail.record())))
}

/// A schedule as this caller may see it.
fn visible(caller: &Caller, mut record: Value) -> Value {
    if !caller.may(Right::SeeData)
        && let Some(Value::Object(spec)) = record.pointer_mut("/schedule/task")
    {
        hide_spec(spec);
    }
    record
}

pub(super) async fn put(
    State(state): State<AppState>,
    headers: HeaderMap,
    Path(name): Path<String>,
    Body(mut body): Body<Value>,
) -> Result<Json<Value>> {
    if let Value::Object(fields) = &mut body {
        fields.entry("name").or_insert_with(|| name.as_str().into());
    }
    let written = Schedule::from_json(&body.to_string()).map_err(|error| {
        let why = format!("this is not a schedule, {error}");
        Problem::new(StatusCode::UNPROCESSABLE_ENTITY, why)
    })?;
    if written.name != name {
        let why = format!(
            "the schedule is called '{}', and the path says '{name}'",
            written.name
        );
        return Err(Problem::bad_request(why));
    }
    check_version(&state, &headers, &name).await?;
    let put = schedule::put(state.broker(), written, true).await?;
    let entry = put.entry();
    let status = match &put {
        PutOutcome::Added(_) => "added",
        PutOutcome::Replaced(_) => "replaced",
        PutOutcome::Unchanged(_) => "unchanged",
    };
    Ok(Json(
        json!({ "name": name, "put": status, "paused": entry.paused, "next": entry.due() }),
    ))
}

/// Fails if the schedule is not of the version that the request has seen.
async fn check_version(state: &AppState, headers: &HeaderMap, name: &str) -> Result<()> {
    let Some(expected) = headers.get(IF_MATCH).and_then(|value| value.to_str().ok()) else {
        return Ok(());
    };
    let found = state.broker().schedule(name).await?;
    let version = found.map(|view| view.version.to_string());
    if version.as_deref() == Some(expected.trim_matches('"')) {
        return Ok(());
    }
    Err(Problem::new(
        StatusCode::PRECONDITION_FAILED,
        format!("schedule '{name}' has changed since you have read it: read it again"),
    ))
}

pub(super) async fn remove(
    State(state): State<AppState>,
    headers: HeaderMap,
    Path(name): Path<String>,
) -> Result<Json<Value>> {
    check_version(&state, &headers, &name).await?;
    schedule::remove(state.broker(), &name).await?;
    Ok(changed(&name, "removed", true))
}

pub(super) async fn pause(
    State(state): State<AppState>,
    Path(name): Path<String>,
) -> Result<Json<Value>> {
    let has_changed = schedule::pause(state.broker(), &name).await?;
    Ok(changed(&name, "paused", has_changed))
}

pub(super) async fn resume(
    State(state): State<AppState>,
    Path(name): Path<String>,
) -> Result<Json<Value>> {
    let has_changed = schedule::resume(state.broker(), &name).await?;
    Ok(changed(&name, "resumed", has_changed))
}

pub(super) async fn run_now(
    State(state): State<AppState>,
    Path(name): Path<String>,
) -> Result<Json<Value>> {
    let submitted = schedule::run_now(state.broker(), &name).await?;
    let (tid, existing) = (submitted.tid(), matches!(submitted, Submitted::Existing(_)));
    Ok(Json(
        json!({ "name": name, "tid": tid, "existing": existing }),
    ))
}

fn changed(name: &str, status: &str, has_changed: bool) -> Json<Value> {
    Json(json!({ "name": name, "is": status, "changed": has_changed }))
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        let status = match error {
            Error::Broker(error) => return error.into(),
            Error::Absent(_) => StatusCode::NOT_FOUND,
            Error::Invalid(_) => StatusCode::UNPROCESSABLE_ENTITY,
            _ => StatusCode::CONFLICT,
        };
        Self::new(status, error.to_string())
    }
}
