//! `/metrics`, `/healthz` and `/readyz` of the operator's interface.

use std::time::Duration;

use axum::{
    extract::State,
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
    routing::get,
};
use raddle_telemetry::metrics::MetricsPage;
use tokio::time::timeout;

use crate::{
    auth::Right,
    probes::EXPOSITION,
    problem::Problem,
    route::{Access, Route, Verb},
    state::AppState,
};

/// How long the broker may take.
const WITHIN: Duration = Duration::from_secs(5);
const METRICS: &str = "Metrics in the text format of Prometheus";

/// The routes, where metrics need sign-in.
pub(crate) const CLOSED: &[Route] = &[
    Route::api(
        Verb::Get,
        "/metrics",
        Access::Needs(Right::See),
        METRICS,
        || get(metrics),
    ),
    Route::api(
        Verb::Get,
        "/healthz",
        Access::Open,
        "Whether the server answers",
        || get(async || "ok\n"),
    ),
    Route::api(
        Verb::Get,
        "/readyz",
        Access::Open,
        "Whether the broker answers",
        || get(ready),
    ),
];

/// The routes, where metrics are open.
pub(crate) const OPEN: &[Route] = &[
    Route::api(Verb::Get, "/metrics", Access::Open, METRICS, || {
        get(metrics)
    }),
    Route::api(
        Verb::Get,
        "/healthz",
        Access::Open,
        "Whether the server answers",
        || get(async || "ok\n"),
    ),
    Route::api(
        Verb::Get,
        "/readyz",
        Access::Open,
        "Whether the broker answers",
        || get(ready),
    ),
];

async fn metrics(State(state): State<AppState>) -> Response {
    let mut page = MetricsPage::default();
    match timeout(WITHIN, state.metrics.show(&mut page)).await {
        Ok(()) => ([(CONTENT_TYPE, EXPOSITION)], page.into_text()).into_response(),
        Err(_) => unready("the broker did not answer in time").into_response(),
    }
}

async fn ready(State(state): State<AppState>) -> Result<&'static str, Problem> {
    match timeout(WITHIN, state.broker().last_event()).await {
        Ok(Ok(_)) => Ok("ready\n"),
        // The address is open: it tells nothing about the broker.
        Ok(Err(_)) | Err(_) => Err(unready("the broker does not answer")),
    }
}

fn unready(why: &str) -> Problem {
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, why)
}
