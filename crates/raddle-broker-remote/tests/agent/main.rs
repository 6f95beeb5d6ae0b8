//! A broker served over a socket: the conformance suite on every engine behind it, and what can happen to a socket.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod calls;
mod direct;
mod engines;
mod guests;
mod helper;
mod hostile;
mod many;
mod processes;
mod sockets;
mod support;

#[path = "../../../raddle-broker-sqlite/tests/common/mod.rs"]
mod common;

#[path = "../../../raddle-broker-redis/tests/redis_server/mod.rs"]
#[expect(
    dead_code,
    reason = "an agent asks less of a server than the faults do"
)]
mod redis_server;
