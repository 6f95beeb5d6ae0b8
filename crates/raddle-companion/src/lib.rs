//! The companion: a process beside a program in another language that holds what a Rust program
//! holds in itself, such as brokers and pools. The program speaks to it over Unix sockets.
//!
//! The `raddle` Python package starts one as `raddle companion`. A library with threads inside the
//! program would not survive a fork, and two copies of SQLite in one process would drop each
//! other's locks; a process beside it has neither problem.
//!
//! | file | content |
//! | --- | --- |
//! | `protocol.rs` | the messages |
//! | `socket.rs` | reading frames and passed descriptors, and the check of peers |
//! | `connection.rs` | one connection: its requests and replies |
//! | `service.rs` | the process: its connections, and its end with the program |
//! | `brokers.rs` | the open brokers |
//! | `tasks.rs`, `output.rs`, `run.rs`, `schedules.rs` | what the requests do |
//! | `pools.rs`, `calls.rs` | pools of workers, and the calls to them |
//! | `failure.rs` | errors, as the program receives them |
//!
//! The protocol is private: program and companion are of one package. It has the frames of the host
//! protocol. Each side may be of another version only by mistake, and is refused by name.

mod brokers;
#[cfg(feature = "pool")]
mod calls;
mod connection;
mod failure;
mod output;
#[cfg(feature = "pool")]
mod pools;
mod protocol;
mod run;
mod schedules;
mod service;
mod socket;
mod tasks;

pub use brokers::{OpenBroker, OpenedBroker};
pub use failure::Failure;
pub use service::{Companion, Options};
