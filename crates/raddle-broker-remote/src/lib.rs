//! A broker served to other processes of this machine over a Unix socket: the same traits, in another process.
//!
//! A thousand one-shot workers then cost no thousand database connections, and a worker in a sandbox needs nothing but the socket.
//!
//! | file | what |
//! | --- | --- |
//! | `protocol.rs` | what is said: the greeting, frames, and a `Call` for every method |
//! | `wire.rs` | frames on their way in and out, in a form that can be interrupted anywhere |
//! | `socket.rs` | the socket file, and who may be at the other end |
//! | `server.rs`, `session.rs`, `perform.rs` | [`BrokerServer`]: connections; one connection; one call |
//! | `guests.rs` | what is left of a call for workers in containers, which are not trusted |
//! | `serving.rs` | [`ServedBroker`]: an agent beside what else its process does |
//! | `client.rs`, `link.rs` | [`Remote`]: the traits; one connection |
//! | `direct.rs` | the engine itself, for a client that is to go on without the agent |
//! | `renewer.rs` | a worker's lease, over a connection of its own |
//!
//! **What goes back.** A caller that drops its future sends a cancel; the server drops the broker's future, and what that had taken goes
//! back as it does within one process. An answer to a claim that could not be written is given back by the server; one that arrives
//! for a caller who is gone is given back by the client. A client that dies has all its calls dropped. Two answers can still be lost:
//!
//! - Written to the socket, and never read by a client that was killed. The claim's owner is registered, and its lease, which nobody
//!   renews any more, runs out: the task is taken back like any other of a dead worker.
//! - Never written by a server that was killed after the engine had committed the claim. Its worker compares what it holds with what the broker
//!   assigns to it, twice within its lease, and gives back what it knows nothing of.

mod client;
mod connection;
mod container_clients;
mod direct;
mod dispatch;
mod frames;
mod lease_renewer;
mod protocol;
mod served;
mod server;
mod session;
mod socket;

pub use client::Remote;
pub use container_clients::ContainerClients;
pub use served::ServedBroker;
pub use server::{BrokerServer, Options};
