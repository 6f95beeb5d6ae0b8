//! The worker's side of calls: a process that serves `raddle.v1.Worker`.
//!
//! It has two runtimes. On the *control* runtime, which has the main thread, are the acceptor, gRPC, health, and the order to stop; no code of a user's
//! ever runs there. On the *runtime of routines*, which has other threads, are the routines, and the links that bring them: a call runs on the thread
//! that has read it. `blocking.rs` sees to it that a routine that blocks its thread hardly delays others.

mod acceptor;
mod authorizer;
mod backpressure;
mod blocking;
mod call;
mod config;
mod connection_limiter;
mod executor;
mod grpc_connection;
mod link;
mod listener;
mod message_limits;
mod panics;
mod process;
mod reply_sink;
mod service;
mod stop;

pub use self::{
    backpressure::{Backpressure, WorkerLoad},
    process::main_if_asked,
};
pub(crate) use self::{
    config::{ARGUMENT, ASKED, STOP, StartReport, WorkerSettings},
    listener::ListenError,
    panics::words,
    process::has_entered,
};

/// A name that came from elsewhere, in a message.
fn shown(name: &str) -> String {
    name.chars()
        .take(128)
        .flat_map(char::escape_default)
        .collect()
}
