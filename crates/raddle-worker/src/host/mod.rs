//! Options of hosts: warm processes of the user's program that run many attempts and keep state
//! between them.
//!
//! The worker's side is `crate::worker::host_pool`, the side of a Rust host `raddle_client::host`,
//! and the protocol `raddle_model::host`.

mod failure;
mod options;

pub use crate::worker::probe;
pub use failure::{HostStartFailure, report_start_failure, start_failures};
pub use options::{DEFAULT_CONCURRENCY, HostOptions, HostProgram};
pub use raddle_client::host::{ARGUMENT, QUEUES_VARIABLE};
