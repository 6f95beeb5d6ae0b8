//! The launcher for workers in containers of a Docker engine.
//!
//! | file | what |
//! | --- | --- |
//! | `launcher.rs` | the launcher: starting and adopting containers, forwarding commands |
//! | `container_output.rs` | forwarding the stderr of a container. Pure |
//! | `watch.rs` | one container, from its start to its end |
//!
//! The engine removes a container when it ends (`--rm`), so a killed spawner leaves nothing behind.
//! How a container ended is therefore read from the engine's events.

mod container_output;
mod launcher;
mod watch;

pub use launcher::{ContainerTemplate, DockerLauncher};
pub use raddle_container::{BindMount, DockerEngine, EngineInfo, ImageInfo, hardened_host_config};

pub use super::WorkerClass;
