//! A broker over a socket: the conformance suite on every engine, and faults of the socket.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod calls;
mod container_clients;
mod engines;
mod helper_process;
mod hostile;
mod many_clients;
mod processes;
mod sockets;
mod support;
mod without_server;

#[path = "../../../raddle-broker-sqlite/tests/common/mod.rs"]
mod common;

#[path = "../../../raddle-broker-redis/tests/redis_server/mod.rs"]
#[expect(dead_code, reason = "other tests use more of it")]
mod redis_server;
