//! Metrics of workers, spawners and queues, in the text format of Prometheus.
//!
//! ```text
//!            claim, complete, release                    render
//! worker ───────────► MeteredBroker ───► Metrics ───────────────► MetricsPage ───► /metrics
//!                        │                                            ▲
//!                        ▼                                            │
//!                      broker ◄──────────── QueueExporter ────────────┘
//!                                  summary, workers
//! ```
//!
//! A [`MeteredBroker`] between workers and a broker counts their tasks. A resident worker has one
//! in its own process. A spawner has one where it serves the broker to its workers, so no count is
//! lost when a worker exits, and only writes that the broker has accepted are counted. Containers
//! and pods reach the broker directly, so their spawner counts their tasks from the event log
//! ([`LogCounter`]).
//!
//! | file | what |
//! | --- | --- |
//! | `text_format.rs`, `histogram.rs` | the text format; durations in buckets |
//! | `task_counters.rs` | what is counted of tasks, without I/O or a clock |
//! | `process_metrics.rs`, `attempt_span.rs` | the metrics of a process; an attempt as a span |
//! | `metered_broker.rs` | a broker that counts what passes through it |
//! | `log_counter.rs` | counting from the event log |
//! | `own_process.rs` | version, processor time, memory and descriptors of this process |
//! | `queue.rs` | metrics of the broker itself |

mod attempt_span;
mod histogram;
mod log_counter;
mod metered_broker;
mod own_process;
mod process_metrics;
mod queue;
mod task_counters;
mod text_format;

pub use attempt_span::{AttemptRecorder, AttemptSpan};
pub use log_counter::{LogCounter, SpawnerIds};
pub use metered_broker::MeteredBroker;
pub use own_process::show_process;
pub use process_metrics::{ExitReason, Metrics};
pub use queue::QueueExporter;
pub use text_format::{MetricFamily, MetricKind, MetricsPage};
