//! A broker served over a socket: the conformance suite on every engine behind it, and what can happen to a socket.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod calls;
mod engines;
mod helper;
mod hostile;
mod many;
mod processes;
mod sockets;
mod support;
