//! Hosts, on the side of the user's program: a warm process that runs many attempts and keeps state
//! between them.
//!
//! `program` is the loop of a Rust host, and `context` what an attempt in it can report. The
//! worker's side is `raddle_worker::worker::host_pool`, and the protocol [`raddle_model::host`].

pub(crate) mod context;
mod program;

pub use program::{ARGUMENT, QUEUES_VARIABLE, host_main_if_asked};
