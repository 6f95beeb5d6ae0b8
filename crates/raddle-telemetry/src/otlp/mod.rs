//! Spans for a collector: each attempt of a task, from its claim to its end, over OTLP.
//!
//! ```text
//! Observed ───► Book ───► Sink (bounded) ───► Exporter ───► opentelemetry-otlp ───► collector
//!                            │ full: dropped and counted       │ fails: dropped and counted
//! ```
//!
//! Nothing that runs a task ever waits for a collector. What cannot be delivered is dropped, and that is counted in a metric. Of OpenTelemetry only the exporter
//! is used, under our bounded queue: its batch processor would block one of the few threads of a worker.

mod collector;
mod exporter;
mod sink;
mod span;
mod tls;

pub use collector::{EndpointError, SetUpError, endpoint, is_configured};
pub use exporter::{OtlpResource, SpanSender};
