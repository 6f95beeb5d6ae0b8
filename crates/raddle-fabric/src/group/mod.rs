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
//! Who is started, replaced and stopped is decided in [`raddle_core::supervisor`]. A manager is itself a task: it has an id, an entry in the
//! registry, control queues and a title. Its processes are workers like all others, bound to queues by their slugs.

mod backlog;
mod check;
mod children;
mod evidence;
mod file;
pub mod grace;
mod hook;
mod invocation;
mod life;
mod member;
mod offers;
mod overdue;
mod process;
mod pump;
mod say;
mod service;
mod standing;
mod trigger;
mod view;

pub use check::Mistake;
pub use file::{FileMistake, read};
pub use life::{Builder, Ended, Handle, Manager, ManagerError, Options, Snapshot};
pub use member::{KILLED, Member, MemberError};
pub use offers::unoffered_routine;
pub use process::{OnError, Process, Reconnect, Trigger, Work};
pub use standing::{Standing, standings};
pub use view::{ChangeError, Forgotten, Keeper, View, forget, list, scale, turn};
