//! Containers: what they may use and do, the client of the Docker engine, and tasks in containers.

#[cfg(feature = "docker")]
mod engine;
#[cfg(feature = "docker")]
mod hardened;
mod launch_error;
mod limits;
pub mod task;

#[cfg(feature = "docker")]
pub use engine::{ContainerState, DockerEngine, EngineInfo, ImageInfo, is_conflict, is_not_found};
#[cfg(feature = "docker")]
pub use hardened::{BindMount, hardened_host_config};
pub use launch_error::{ExitKind, LaunchError, LaunchFailure, one_line};
pub use limits::{ContainerLimits, Gpus, InvalidLimit};
