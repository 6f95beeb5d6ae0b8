//! Tasks in containers of their own: isolation `docker`.
//!
//! ```text
//! worker ──► runner ──► leash ──► engine ──► container: init ──► command
//!                         └────── standard input, held open ─────┘
//! ```
//!
//! To the runner the *leash* is the attempt: it is stopped, timed, paused and killed like any command, and what it writes is the task's
//! output. It is this program again, makes the container, and holds the standard input of process 1 in there (`raddle_runner::contained`), which
//! ends when the leash does. So a container lives no longer than its attempt, whoever was killed.
//!
//! | file | what |
//! | --- | --- |
//! | `charge.rs` | what a leash is told on its standard input |
//! | `verdict.rs` | what it answers, and what its silence means. Pure |
//! | `body.rs` | the container that is asked for. Pure |
//! | `leash.rs`, `talk.rs` | the leash: making a container and removing it; talking to its process 1 |
//! | `program.rs` | this program, as containers can see it |
//! | `mark.rs`, `sweep.rs` | which leash a container belongs to; removing those whose leash was killed before it could start them |

#[cfg(feature = "docker")]
mod cleanup;
#[cfg(feature = "docker")]
mod config;
mod params;
#[cfg(feature = "docker")]
mod parent_link;
#[cfg(feature = "docker")]
mod process_identity;
#[cfg(feature = "docker")]
mod program;
#[cfg(feature = "docker")]
mod protocol;
mod result;

#[cfg(feature = "docker")]
pub use cleanup::look_around;
#[cfg(feature = "docker")]
pub use cleanup::{end, sweep};
pub use params::ContainerParams;
#[cfg(feature = "docker")]
pub use parent_link::main as leash_main;
pub use result::judge;

/// The first argument of a leash. A program whose workers have a task image calls `leash_main` when it is started with it.
pub const LEASH: &str = "__leash";
