//! The API under `/api/v1`: JSON in the shapes of the CLI's `--json`.

mod info;

use axum::{
    http::{StatusCode, Uri},
    routing::get,
};

use crate::{
    auth::Right,
    problem::Problem,
    route::{Access, Route, Verb},
};

/// The routes of the API, relative to `/api/v1`.
pub(crate) const ROUTES: &[Route] = &[Route::api(
    Verb::Get,
    "/",
    Access::Needs(Right::See),
    "The version, the engine, and the rights of the caller",
    || get(info::show),
)
.returns("version, broker, engine, name, role, rights")];

/// Answers requests for paths that do not exist.
pub(crate) async fn no_route(uri: Uri) -> Problem {
    Problem::new(
        StatusCode::NOT_FOUND,
        format!("there is no {} here", uri.path()),
    )
}
