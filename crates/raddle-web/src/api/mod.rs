//! The API under `/api/v1`: JSON in the shapes of the CLI's `--json`.

mod audit;
mod control;
mod events;
mod extract;
mod groups;
mod hold;
mod info;
mod messages;
pub(crate) mod openapi;
mod output;
mod reply;
mod routes;
mod schedules;
pub(crate) mod sse;
mod status;
mod submit;
mod tasks;

pub(crate) use control::{CommandParams, control as send_control, retry_task};
pub(crate) use extract::{Body, Params, TaskPath, duration, resolve};
pub(crate) use hold::hold;
pub(crate) use reply::visible_task;
pub(crate) use routes::ROUTES;
pub(crate) use submit::parse_specs;
pub(crate) use tasks::parse_query;

use axum::http::{StatusCode, Uri};

use crate::problem::Problem;

/// Answers requests for paths that do not exist.
pub(crate) async fn no_route(uri: Uri) -> Problem {
    Problem::new(
        StatusCode::NOT_FOUND,
        format!("there is no {} here", uri.path()),
    )
}
