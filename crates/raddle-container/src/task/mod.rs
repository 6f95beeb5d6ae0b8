//! Tasks in containers: isolation `docker`.
//!
//! ```text
//! worker ──► runner ──► supervisor ──► engine ──► container: init ──► command
//!                           └────── standard input, held open ─────────┘
//! ```
//!
//! The *container supervisor* is this program, started by the runner. To the runner it is the
//! attempt: the runner stops, times out, pauses and kills it like any command, and its output is
//! the task's. It creates the container and holds the stdin of process 1 in it
//! (`raddle_runner::container`), which exits when the supervisor does. So no container outlives its
//! attempt, whatever was killed.
//!
//! | file | what |
//! | --- | --- |
//! | `params.rs` | the input of a supervisor |
//! | `result.rs` | the output of a supervisor, and what a missing output means. Pure |
//! | `config.rs` | the container's configuration. Pure |
//! | `supervisor.rs`, `protocol.rs` | creating and removing the container; messages to and from process 1 |
//! | `program.rs` | the file of this program that containers mount |
//! | `process_identity.rs`, `cleanup.rs` | which supervisor a container belongs to; removing orphaned containers |

#[cfg(feature = "docker")]
mod cleanup;
#[cfg(feature = "docker")]
mod config;
mod params;
#[cfg(feature = "docker")]
mod process_identity;
#[cfg(feature = "docker")]
mod program;
#[cfg(feature = "docker")]
mod protocol;
mod result;
#[cfg(feature = "docker")]
mod supervisor;

#[cfg(feature = "docker")]
pub use cleanup::prepare_engine;
#[cfg(feature = "docker")]
pub use cleanup::{end_container, remove_orphans_later};
pub use params::ContainerParams;
pub use result::apply_container_result;
#[cfg(feature = "docker")]
pub use supervisor::main as container_supervisor_main;

/// The first argument of a container supervisor. A program whose workers have a task image calls
/// `container_supervisor_main` when it is started with this argument.
pub const SUPERVISOR_ARGUMENT: &str = "__container";
