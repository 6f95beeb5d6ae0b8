//! The worker: claims tasks and runs each in a process of its own.
//!
//! A worker is itself a task. It has an id, an entry in the registry, control queues and a title. Whether it takes tasks as they come or
//! exactly one ([`Options::only`]) is a matter of policy; the code is the same.
//!
//! ```text
//!            claim                 job                    frames
//! broker ───────────► service ───────────► slot (× N) ───────────► runner ──► command
//!    ▲                  │ ▲                  │
//!    │ started, finish  │ └── words ◄────────┼── control queue
//!    └──── ledger ◄─────┴──── outcome ◄──────┘
//!    ▲
//!    └──── pulse (own thread): renews the lease, moves the runners' fence
//! ```
//!
//! What the service does about what it hears is decided in `core`, without I/O or a clock.

mod apply_command;
mod attempt_reply;
pub(crate) mod attempt_tracing;
mod audit;
mod backlog;
mod chaining;
mod completion_batcher;
pub(crate) mod control_commands;
mod core;
mod event;
mod exec_request;
mod host_pool;
mod isolation;
pub(crate) mod lease_renewal;
mod lifecycle;
mod options;
mod output_forwarding;
mod service;
mod shutdown;
pub(crate) mod shutdown_deadline;
mod slot;
mod slot_classes;
mod stopping;
mod suspend_guard;
mod time_limits;

pub use host_pool::probe;
pub use isolation::{ParseMinIsolationError, minimum};
pub use lifecycle::{Worker, WorkerEnd, WorkerEndReason};
pub use options::{Options, is_local, this_host};
pub use shutdown::Shutdown;
pub use suspend_guard::SuspendGuard;
pub(crate) use time_limits::BEYOND;
pub use time_limits::TimeLimits;
