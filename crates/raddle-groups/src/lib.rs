//! Groups: supervised replicas of processes that host workers, replaced when they hang, and stopped
//! in stages.
//!
//! ```text
//!              start, signals                claim, run, finish
//!  manager ─────────────────────► process (× replicas) ◄──────► broker
//!   │   ▲    exit (pidfd), stop (SIGCHLD)      │
//!   │   └──────────────────────────────────────┘ heartbeats, in a page of shared memory
//!   └── source consumers: messages of sources → tasks of slugs
//! ```
//!
//! | file | what |
//! | --- | --- |
//! | `process.rs`, `check.rs` | the configuration of a group, and its validation. Pure |
//! | `file.rs` | `raddle.toml`, with line numbers of errors. Pure |
//! | `offers.rs` | whether a program offers the routines of a file. Pure |
//! | `service_manager.rs` | how long a stop may take, and whether compose or systemd waits that long. Pure |
//! | `invocation.rs` | the command line of a group process. Pure |
//! | `event_worker.rs` | workers with state, as types of the program |
//! | `children.rs` | the processes: starting and watching them |
//! | `hang_report.rs`, `overdue.rs` | what a hanging process is doing; its tasks that have timed out |
//! | `desired_state.rs` | the desired state of each worker, stored in the broker |
//! | `source_consumer.rs` | turning messages of sources into tasks |
//! | `backlog.rs` | waiting tasks from an older version of the file |
//! | `trigger.rs` | triggers as schedules that the manager owns |
//! | `view.rs` | listing and changing groups |
//! | `service.rs`, `logging.rs` | the loop, and its log |
//! | `lifecycle.rs` | register, run, deregister; the builder |
//! | `group_process.rs`, `hook.rs` | the side of a group process: what it does besides being a worker |
//!
//! [`raddle_supervisor`] decides which process is started, replaced and stopped. A manager is
//! itself a task: it has an id, a registration, control queues and a title. Its processes are
//! ordinary workers that serve the queues of their slugs.

mod backlog;
mod check;
mod children;
mod desired_state;
mod event_worker;
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
pub use desired_state::{DesiredState, desired_states};
pub use event_worker::{
    EventError, EventWorker, RegisteredEventWorker, handle_event, shut_down, start_up,
};
pub use file::{GroupFileError, parse};
pub use group_process::{EXIT_KILLED, GroupProcess, GroupProcessError};
pub use lifecycle::{
    Builder, GroupEnd, GroupHandle, GroupSnapshot, Manager, ManagerError, Options,
};
pub use offers::find_unoffered_routine;
pub use process::{GroupWorker, OnError, Process, ReconnectPolicy, Trigger};
pub use view::{
    ForgottenWorker, GroupChangeError, GroupManagerRef, GroupWorkerView, forget, list, scale,
    set_worker_on,
};
