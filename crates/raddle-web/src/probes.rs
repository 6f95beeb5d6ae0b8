//! Routes of the server: metrics, readiness and health.

use std::{future::Future, time::Duration};

use axum::{
    Router,
    http::{StatusCode, header::CONTENT_TYPE},
    response::IntoResponse,
    routing::get,
};
use tokio::time::timeout;

/// Whether a service is ready, with a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// The service is ready.
    Ready(String),
    /// Not yet ready, or no longer.
    Unready(String),
}

/// Content type of the Prometheus text format.
pub(crate) const EXPOSITION: &str = "text/plain; version=0.0.4; charset=utf-8";
/// Time limit for rendering the metrics.
const PAGE_WITHIN: Duration = Duration::from_secs(10);

/// Serves `/metrics` with the result of `page`.
pub fn metrics<F, P>(page: F) -> Router
where
    F: Fn() -> P + Clone + Send + Sync + 'static,
    P: Future<Output = String> + Send,
{
    let handler = async move || match timeout(PAGE_WITHIN, page()).await {
        Ok(page) => ([(CONTENT_TYPE, EXPOSITION)], page).into_response(),
        Err(_) => (
            StatusCode::SERVICE_UNAVAILABLE,
            "the metrics took too long\n",
        )
            .into_response(),
    };
    Router::new().route("/metrics", get(handler))
}

/// Serves `/readyz`, which is 200 or 503, and `/healthz`, which is 200 while the server answers.
pub fn health<F>(readiness: F) -> Router
where
    F: Fn() -> Readiness + Clone + Send + Sync + 'static,
{
    let ready = async move || match readiness() {
        Readiness::Ready(message) => (StatusCode::OK, message + "\n"),
        Readiness::Unready(message) => (StatusCode::SERVICE_UNAVAILABLE, message + "\n"),
    };
    Router::new()
        .route("/readyz", get(ready))
        .route("/healthz", get(async || "ok\n"))
}
