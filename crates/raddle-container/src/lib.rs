//! Containers: what they may use and do, the client of the Docker engine, and tasks in containers.

#[cfg(feature = "docker")]
mod engine;
#[cfg(feature = "docker")]
mod hardened;
mod launch_error;
mod limits;
pub mod task;

#[cfg(feature = "docker")]
pub use engine::{ContainerExit, DockerEngine, EngineInfo, ImageInfo, is_absent, is_in_the_way};
#[cfg(feature = "docker")]
pub use hardened::{BindMount, hardened};
pub use launch_error::{ExitKind, LaunchError, LaunchFailure, one_line};
pub use limits::{ContainerLimits, Gpus, InvalidLimit};
