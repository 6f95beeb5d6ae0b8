//! Metrics and traces. This crate must not know who keeps them: spawner and groups add their own
//! metrics to a [`metrics::MetricsPage`].

pub mod metrics;
#[cfg(feature = "otlp")]
pub mod otlp;
