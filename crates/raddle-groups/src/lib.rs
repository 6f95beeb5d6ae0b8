//! Groups: processes that host workers. A manager keeps a number of replicas of each alive,
//! replaces those that hang, and stops them in stages.
//!
//! ```text
//!              start, signals                claim, run, finish
//!  manager ─────────────────────► process (× replicas) ◄──────► broker
//!   │   ▲    death (pidfd), stop (SIGCHLD)     │
//!   │   └──────────────────────────────────────┘ heartbeats, in a page of shared memory
//!   └── source consumer: messages of sources → tasks of slugs
//! ```
//!
//! | file | contents |
//! | --- | --- |
//! | `process.rs`, `check.rs` | configuration of a group, and its validation. Pure |
//! | `file.rs` | `raddle.toml`, with the line of each mistake. Pure |
//! | `offers.rs` | whether a program offers the routines of a file. Pure |
//! | `service_manager.rs` | how long a stop may take, and whether compose or systemd waits that long. Pure |
//! | `invocation.rs` | arguments and environment of a group process. Pure |
//! | `children.rs` | child processes: start, events, progress pages |
//! | `hang_report.rs`, `overdue.rs` | diagnostics of a process before it is killed; timing out its overdue tasks |
//! | `desired_state.rs` | the desired state of each worker, stored in the broker |
//! | `source_consumer.rs` | converts messages of sources into tasks |
//! | `backlog.rs` | warns about waiting tasks that an older version of the file made |
//! | `trigger.rs` | stores triggers as schedules that the manager owns |
//! | `view.rs` | lists, scales, switches and forgets workers of groups |
//! | `service.rs`, `logging.rs` | the manager's event loop; its log messages |
//! | `lifecycle.rs` | registration, run and end of a manager; its builder |
//! | `metrics.rs` | Prometheus metrics of a manager |
//! | `group_process.rs`, `hook.rs` | the child's side: what a group process does besides being a worker |
//!
//! [`raddle_supervisor`] decides which process is started, replaced and stopped. A manager is
//! itself a task: it has an id, an entry in the registry, control queues and a title. Its processes
//! are ordinary workers, bound to queues by their slugs.

mod backlog;
mod check;
mod children;
mod desired_state;
mod file;
mod group_process;
mod hang_report;
mod hook;
mod invocation;
mod lifecycle;
mod logging;
pub mod metrics;
mod offers;
mod overdue;
mod process;
mod service;
pub mod service_manager;
mod source_consumer;
mod trigger;
mod view;

pub use check::GroupConfigError;
pub use desired_state::{DesiredState, standings};
pub use file::{GroupFileError, read};
pub use group_process::{GroupProcess, GroupProcessError, KILLED};
pub use lifecycle::{
    Builder, GroupEnd, GroupHandle, GroupSnapshot, Manager, ManagerError, Options,
};
pub use offers::unoffered_routine;
pub use process::{GroupWorker, OnError, Process, ReconnectPolicy, Trigger};
pub use view::{
    ForgottenWorker, GroupChangeError, GroupManagerRef, GroupWorkerView, forget, list, scale, turn,
};
