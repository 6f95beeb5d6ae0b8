//! Commands to tasks, workers and queues.

use std::time::Duration;

use axum::{
    Extension, Json,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use raddle_model::{ControlCommand, ControlMessage, Tid};
use raddle_view::{
    control::{CommandOutcome, refuse_worker, send_command},
    find::get_task,
    recover::recover_task,
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::extract::{Params, TaskPath, duration};
use crate::{
    audit::AuditNote,
    auth::Caller,
    problem::{Problem, Result},
    state::AppState,
};

/// How long a command may take, unless the request says otherwise; it cannot say more.
const WITHIN: Duration = Duration::from_secs(10);

/// How long to wait, and why the command is sent.
#[derive(Default, Deserialize)]
pub(crate) struct CommandParams {
    timeout: Option<String>,
    reason: Option<String>,
}

macro_rules! commands {
    ($($name:ident $command:ident)*) => {
        $(
            pub(super) async fn $name(
                State(state): State<AppState>,
                TaskPath(tid): TaskPath,
                Params(params): Params<CommandParams>,
            ) -> Result<Response> {
                control(&state, tid, ControlCommand::$command, params).await
            }
        )*
    };
}

commands! { stop Stop  kill Kill  pause Pause  resume Resume  ping Ping }

/// Sends a command and waits for what follows: 200 with the outcome, or 202 while it is pending.
pub(crate) async fn control(
    state: &AppState,
    tid: Tid,
    command: ControlCommand,
    params: CommandParams,
) -> Result<Response> {
    let within = duration(params.timeout.as_deref(), WITHIN)?.unwrap_or(WITHIN);
    let message = ControlMessage::new(command);
    let outcome = send_command(state.broker(), tid, message, within).await?;
    let status = match outcome {
        CommandOutcome::NoReply(_) => StatusCode::ACCEPTED,
        _ => StatusCode::OK,
    };
    let reply = (status, Json(outcome.record(tid, command)));
    Ok(noted(tid, params.reason, reply))
}

pub(super) async fn retry(
    State(state): State<AppState>,
    TaskPath(tid): TaskPath,
    Params(params): Params<CommandParams>,
) -> Result<Response> {
    let new = retry_task(&state, tid).await?;
    let reply = Json(json!({ "tid": new, "retry_of": tid }));
    Ok(noted(tid, params.reason, (StatusCode::CREATED, reply)))
}

/// Submits a finished task again. A dead letter is retried once, also by several callers at a time.
pub(crate) async fn retry_task(state: &AppState, tid: Tid) -> Result<Tid> {
    let task = get_task(state.broker(), tid).await?;
    refuse_worker(state.broker(), &task, "submitted again").await?;
    Ok(state.broker().resubmit(tid, task.dead).await?)
}

/// How to recover a task.
#[derive(Deserialize)]
pub(super) struct RecoverParams {
    timeout: Option<String>,
    force: Option<u8>,
    reason: Option<String>,
}

pub(super) async fn recover(
    State(state): State<AppState>,
    TaskPath(tid): TaskPath,
    Params(params): Params<RecoverParams>,
) -> Result<Response> {
    let within = duration(params.timeout.as_deref(), WITHIN)?.unwrap_or(WITHIN);
    let task = get_task(state.broker(), tid).await?;
    let action = recover_task(state.broker(), &task, within, params.force == Some(1)).await?;
    Ok(noted(tid, params.reason, Json(action.record(tid))))
}

pub(super) async fn delete(
    State(state): State<AppState>,
    Extension(_caller): Extension<Caller>,
    TaskPath(tid): TaskPath,
) -> Result<Json<Value>> {
    let task = get_task(state.broker(), tid).await?;
    if !task.state.is_terminal() {
        let why = format!(
            "task {tid} is {}, and cannot be deleted: stop it first with 'raddle task stop'",
            task.state
        );
        return Err(Problem::new(StatusCode::CONFLICT, why).with_tid(tid));
    }
    let deleted = state.broker().delete(vec![tid]).await?;
    Ok(Json(json!({ "deleted": deleted })))
}

fn noted(tid: Tid, reason: Option<String>, reply: impl IntoResponse) -> Response {
    let note = AuditNote {
        selection: Some(tid.to_string()),
        count: Some(1),
        reason,
    };
    (Extension(note), reply).into_response()
}

/// A command to a worker: the same, once it is sure that it is one.
macro_rules! worker_commands {
    ($($name:ident $command:ident)*) => {
        $(
            pub(super) async fn $name(
                State(state): State<AppState>,
                TaskPath(tid): TaskPath,
                Params(params): Params<CommandParams>,
            ) -> Result<Response> {
                require_worker(&state, tid).await?;
                control(&state, tid, ControlCommand::$command, params).await
            }
        )*
    };
}

worker_commands! { stop_worker Stop  kill_worker Kill  pause_worker Pause  resume_worker Resume }

/// A command with a wrong id must not end a user's task.
async fn require_worker(state: &AppState, tid: Tid) -> Result<()> {
    let task = get_task(state.broker(), tid).await?;
    if task.spec.is_service() {
        return Ok(());
    }
    let why = format!("task {tid} is not a worker: stop it with 'raddle task stop'");
    Err(Problem::new(StatusCode::CONFLICT, why).with_tid(tid))
}
