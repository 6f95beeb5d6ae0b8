//! The server side of calls: a worker process that serves `raddle.v1.Worker`.
//!
//! The process has two runtimes. The *control runtime*, on the main thread, runs the acceptor,
//! gRPC, health and stop requests, and never user code. The *routine runtime*, on other threads,
//! runs the routines and reads the links: a call runs on the thread that has read it. `blocking.rs`
//! keeps a routine that blocks its thread from delaying others.

mod acceptor;
mod authorizer;
mod backpressure;
mod blocking;
mod call;
mod config;
mod connection_limiter;
mod executor;
mod grpc_connection;
mod host;
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
    config::{ARGUMENT, QUERY_COUNTS, STOP, StartReport, WorkerSettings},
    listener::ListenError,
    panics::panic_message,
    process::has_entered,
};

/// Escapes and shortens a name from outside, for a message.
fn escape_name(name: &str) -> String {
    name.chars()
        .take(128)
        .flat_map(char::escape_default)
        .collect()
}
