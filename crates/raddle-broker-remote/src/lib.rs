//! A broker served to other processes of one machine over a Unix socket: the same traits, in
//! another process.
//!
//! A thousand one-shot workers cost no thousand database connections in this way, and a worker in a
//! sandbox needs nothing but the socket.
//!
//! | file | content |
//! | --- | --- |
//! | `protocol.rs` | greeting, messages, and their limits |
//! | `frames.rs` | cancellable reading and writing of frames |
//! | `socket.rs` | the socket file, and the check of peers |
//! | `server.rs`, `session.rs`, `dispatch.rs` | [`BrokerServer`]: connections; one connection; one call |
//! | `container_clients.rs` | the restrictions of workers in containers, which are not trusted |
//! | `served.rs` | [`ServedBroker`]: a server as a background task |
//! | `client.rs`, `connection.rs` | [`Remote`]: the traits; one connection |
//! | `fallback.rs` | the engine itself, for a client that outlives the server |
//! | `lease_renewer.rs` | renewal of a lease, over a connection of its own |
//!
//! **Undelivered claims.** A caller that drops its future sends a cancel; the server drops the
//! broker's future, which releases claims as it does within one process. The server releases claims
//! whose reply it could not write; the client releases claims whose caller is gone. If a client
//! dies, all its calls are dropped. Two replies can still be lost:
//!
//! - Written to the socket, but never read by a client that was killed. The claims belong to a
//!   registered worker whose lease expires, and are reclaimed.
//! - Never written by a server that was killed after the engine had committed the claim. The worker
//!   compares its tasks with those that the broker assigns to it, twice per lease, and releases the
//!   ones that it does not know.

mod client;
mod connection;
mod container_clients;
mod dispatch;
mod fallback;
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
pub use socket::{BoundSocket, bind_socket};
