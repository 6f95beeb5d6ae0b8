//! Spans for a collector: each attempt of a task, from its claim to its end, over OTLP/HTTP as JSON.
//!
//! ```text
//! Observed ───► Book ───► Sink (bounded) ───► Exporter ───► POST /v1/traces
//!                            │ full: dropped and counted       │ fails: dropped and counted
//! ```
//!
//! Nothing that runs a task ever waits for a collector. What cannot be delivered is dropped, and that is counted in a metric.
//!
//! Written here because it is small: the crates that do this bring a second way to time, run and log, and break with each version. It speaks
//! plain HTTP to a collector on this machine, which is there to send spans on, with encryption.

mod endpoint;
mod exporter;
mod payload;
mod post;
mod sink;

pub use endpoint::{Endpoint, EndpointError};
pub use exporter::{Exporter, Resource};
