//! The task worker: claims tasks and runs each in its own process, through `raddle-runner`.
//!
//! Nothing here knows which engine the broker is. Managers, such as the spawner, share the worker's
//! [`registration`], its control commands and its shutdown.

#[cfg(feature = "pool")]
pub mod discovery;
pub mod host;
pub mod plugins;
pub mod registration;
pub mod run;
pub mod scheduler;
mod space;
pub mod worker;

pub use space::wait_for_space;
pub use worker::{Options, Shutdown, Worker, WorkerEnd};
