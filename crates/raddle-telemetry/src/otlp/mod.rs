//! Export of spans over OTLP: each attempt of a task, from its claim to its end.
//!
//! ```text
//! MeteredBroker ─► Metrics ─► SpanQueue (bounded) ─► SpanSender ─► opentelemetry-otlp ─► collector
//!                                │ full: dropped, counted  │ fails: dropped, counted
//! ```
//!
//! Nothing that runs a task waits for a collector. Of OpenTelemetry only the exporter is used,
//! behind our bounded queue: its batch processor would block one of the few threads of a worker.

mod collector;
mod exporter;
mod span;
mod span_queue;
mod tls;

pub use collector::{EndpointError, SetUpError, is_configured, parse_endpoint};
pub use exporter::{OtlpResource, SpanSender};
