//! Groups: processes that host workers, so many of each, kept alive, replaced when they hang, and stopped in stages.
//!
//! ```text
//!              start, signals                claim, run, finish
//!  manager ─────────────────────► process (× replicas) ◄──────► broker
//!   │   ▲    death (pidfd), stop (SIGCHLD)     │
//!   │   └──────────────────────────────────────┘ marks, by a page of memory that both map
//!   └── pump: messages of sources → tasks of slugs
//! ```
//!
//! | file | what |
//! | --- | --- |
//! | `process.rs`, `check.rs` | what a group is to be like, and whether it can be. Pure |
//! | `file.rs` | `raddle.toml`, with the line of what is wrong. Pure |
//! | `offers.rs` | whether a program offers the routines of a file. Pure |
//! | `grace.rs` | how long a stop may take, and whether whoever runs a manager waits for so long. Pure |
//! | `invocation.rs` | how this program is told to be one of a group. Pure |
//! | `children.rs` | the processes: starting them, hearing of them, looking at them |
//! | `evidence.rs`, `overdue.rs` | what a process is doing, before it is killed; those of its tasks that have taken too long |
//! | `standing.rs` | what is wanted of each worker, kept in the broker |
//! | `pump.rs` | messages of sources become tasks |
//! | `backlog.rs` | what tasks that wait will run, where a file has changed |
//! | `trigger.rs` | triggers become schedules that are marked as the manager's |
//! | `view.rs` | what people see of groups, and do to them |
//! | `service.rs`, `say.rs` | the loop; what it says |
//! | `life.rs` | registered, at work, gone; the builder |
//! | `member.rs`, `hook.rs` | the other side: what a process of a group does besides being a worker |
//!
//! Who is started, replaced and stopped is decided in [`raddle_supervisor`]. A manager is itself a task: it has an id, an entry in the
//! registry, control queues and a title. Its processes are workers like all others, bound to queues by their slugs.

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
