//! The launcher whose workers are containers of a Docker engine.
//!
//! | file | what |
//! | --- | --- |
//! | `containers.rs` | the launcher: starting, taking charge of what another has left, passing orders on |
//! | `heard.rs` | what people are shown of what a container says. Pure |
//! | `watch.rs` | one container, from its start to its end |
//!
//! A container is removed by the engine when it ends, whoever is there to see it. So nothing is left of a spawner that was killed, and how a
//! container ended is asked of the engine's events and not of the container.

mod container_output;
mod launcher;
mod watch;

pub use launcher::{ContainerTemplate, DockerLauncher};
pub use raddle_container::{BindMount, DockerEngine, EngineInfo, ImageInfo, hardened_host_config};

pub use super::WorkerClass;
