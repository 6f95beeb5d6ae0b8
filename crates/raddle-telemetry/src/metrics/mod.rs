//! What operators see of workers, spawners and queues: numbers in the text format of Prometheus.
//!
//! ```text
//!            claim, finish, release                 render
//! worker ───────────► Observed ───────► Book ─────────────► Page ───► /metrics
//!                        │                                   ▲
//!                        ▼                                   │
//!                      broker ◄────────── Exporter ──────────┘
//!                               demand, workers
//! ```
//!
//! Whoever wants to count what passes between workers and a broker puts an [`MeteredBroker`] between them. A resident worker does so in its own
//! process. A spawner does it where it serves the broker to its workers, so that nothing is lost with their exit, and one that is killed in the
//! middle of a task has told nothing that could be half true: only what the broker has taken is counted. Where its workers reach the broker themselves,
//! as containers and pods do, a spawner counts what the event log says of them.
//!
//! | file | what |
//! | --- | --- |
//! | `page.rs`, `histogram.rs` | the text format; durations in buckets |
//! | `account.rs` | **what is counted** of tasks, without I/O or a clock |
//! | `book.rs`, `attempt.rs` | the account of a process, shared; an attempt, told as a whole |
//! | `observed.rs` | a broker that keeps the account |
//! | `log_counter.rs` | the account of workers that reach the broker themselves, from the event log |
//! | `queue.rs` | the queue exporter: what waits in a broker |

mod attempt_span;
mod histogram;
mod log_counter;
mod metered_broker;
mod process_metrics;
mod queue;
mod task_counters;
mod text_format;

pub use attempt_span::{AttemptRecorder, AttemptSpan};
pub use log_counter::{LogCounter, SpawnerIds};
pub use metered_broker::MeteredBroker;
pub use process_metrics::{ExitReason, Metrics};
pub use queue::QueueExporter;
pub use text_format::{MetricFamily, MetricKind, MetricsPage};
