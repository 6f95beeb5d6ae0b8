//! Who runs the tasks: workers, and the managers that keep them.
//!
//! Nothing here knows which engine the broker is, and nothing here runs a target itself: attempts run in processes of their
//! own, through `raddle-runner`.

pub mod contained;
#[cfg(feature = "pool")]
pub mod discovery;
pub mod explain;
pub mod group;
pub mod handler;
pub mod host;
pub mod metrics;
pub mod orphan_processes;
#[cfg(feature = "otlp")]
pub mod otlp;
mod registration;
pub mod routine;
pub mod run;
pub mod schedule;
mod space;
pub mod spawner;
pub mod text;
pub mod wait;
pub mod worker;

pub use space::wait_for_space;
pub use worker::{Options, Shutdown, Worker, WorkerEnd};
