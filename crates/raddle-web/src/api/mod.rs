//! The API under `/api/v1`: JSON in the shapes of the CLI's `--json`.

pub(crate) mod audit;
pub(crate) mod control;
mod events;
pub(crate) mod extract;
mod groups;
mod hold;
mod info;
pub(crate) mod messages;
pub(crate) mod openapi;
pub(crate) mod operations;
mod output;
pub(crate) mod reply;
mod routes;
mod schedules;
mod series;
pub(crate) mod sse;
mod status;
pub(crate) mod submit;
pub(crate) mod tasks;

pub use openapi::reference;

pub(crate) use hold::hold;
pub(crate) use routes::ROUTES;

use axum::http::{StatusCode, Uri};

use crate::problem::Problem;

/// Answers requests for paths that do not exist.
pub(crate) async fn no_route(uri: Uri) -> Problem {
    Problem::new(
        StatusCode::NOT_FOUND,
        format!("there is no {} here", uri.path()),
    )
}
