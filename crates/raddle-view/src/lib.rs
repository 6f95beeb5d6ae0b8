//! Answers to what operators ask about tasks, workers and brokers.
//!
//! Each answer is a value that serializes, and an async function over `dyn Broker` that reads it.
//! The CLI with `--json`, the HTTP API, the dashboard and the TUI show the same values. This crate
//! must not render them.

pub mod batch;
pub mod control;
pub mod doctor;
mod error;
pub mod events;
pub mod exit_code;
pub mod failures;
pub mod find;
pub mod groups;
pub mod overview;
#[cfg(feature = "pool")]
pub mod pool;
pub mod queues;
pub mod reclaimed;
pub mod recover;
pub mod schedule;
pub mod select;
pub mod task;
pub mod task_detail;
pub mod tasks;
pub mod tree;
pub mod workers;

pub use error::{Error, Result};
