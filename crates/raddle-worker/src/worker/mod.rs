//! The worker: claims tasks and runs each in its own process.
//!
//! A worker is itself a task: it has an id, a registration, control queues and a title. The same
//! code serves all policies, from a worker for exactly one task ([`Options::only`]) to a resident
//! worker.
//!
//! ```text
//!            claim               task                  ExecRequest
//! broker ───────────► service ───────────► slot (× N) ───────────► runner ──► command
//!    ▲                  │ ▲                  │
//!    │ started, finish  │ └── commands ◄─────┼── control queue
//!    └── CompletionBatcher ◄── completion ◄──┘
//!    ▲
//!    └──── RenewerThread: renews the lease, extends the runners' deadline
//! ```
//!
//! `WorkerCore` decides what the service does, without I/O or a clock.

mod apply_command;
mod attempt_reply;
pub(crate) mod attempt_tracing;
mod audit;
mod backlog;
mod chaining;
mod completion_batcher;
pub mod control_commands;
mod core;
mod event;
mod exec_request;
mod host_pool;
mod isolation;
pub mod lease_renewal;
mod lifecycle;
mod options;
mod output_forwarding;
mod service;
mod shutdown;
pub mod shutdown_deadline;
mod slot;
mod slot_classes;
mod stopping;
mod suspend_guard;
mod time_limits;

pub use host_pool::probe;
pub use isolation::{ParseMinIsolationError, parse_min_isolation};
pub use lifecycle::{Worker, WorkerEnd, WorkerEndReason};
pub use options::{Options, is_local, this_host};
pub use shutdown::Shutdown;
pub use suspend_guard::SuspendGuard;
pub use time_limits::HANG_MARGIN;
pub use time_limits::TimeLimits;
