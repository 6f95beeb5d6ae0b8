//! The launcher whose workers are containers of a Docker engine.
//!
//! | file | what |
//! | --- | --- |
//! | `hardened.rs` | **what a container may do**: from an allowance to the engine's words for it. Pure |
//! | `engine.rs` | the engine: calls, and what their failures mean |
//! | `containers.rs` | the launcher: starting, taking charge of what another has left, passing orders on |
//! | `heard.rs` | what people are shown of what a container says. Pure |
//! | `watch.rs` | one container, from its start to its end |
//!
//! A container is removed by the engine when it ends, whoever is there to see it. So nothing is left of a spawner that was killed, and how a
//! container ended is asked of the engine's events and not of the container.

mod container_output;
mod engine;
mod hardened;
mod launcher;
mod watch;

pub(crate) use engine::{ContainerExit, is_absent, is_in_the_way};
pub use engine::{DockerEngine, EngineInfo, ImageInfo};
pub use hardened::{BindMount, hardened};
pub use launcher::{ContainerTemplate, DockerLauncher};

pub use super::WorkerClass;
