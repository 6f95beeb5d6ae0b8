//! Hosts: warm processes of the user's program that run many attempts and keep state between them.
//!
//! `program` is the side of a Rust host, and `context` what an attempt in it can say while it runs.
//! The worker's side is `crate::worker::host_pool`, and the protocol `raddle_model::host`.

pub(crate) mod context;
mod options;
mod program;

pub use crate::worker::probe;
pub use options::{DEFAULT_CONCURRENCY, HostOptions, HostProgram};
pub use program::{ARGUMENT, host_main_if_asked};
