//! The host protocol: what a worker and its hosts say to each other.
//!
//! A host is a process of the user's program, in any language, that runs many attempts and keeps
//! state between them. `docs/reference/host-protocol.md` describes the protocol for authors of
//! hosts.

mod codec;
mod message;

pub use codec::{HostDecoder, HostProtocolError, MAX_HEADER, MAX_MESSAGE, encode_message};
pub use message::{
    AttemptRef, CancelAttempt, CancelReason, ChainedTask, FromHost, HostError, HostHello, HostLog,
    HostProgress, HostRoutine, PROTOCOL, Ping, RoutineKind, StartAttempt, StartupFailed, StopHost,
    StreamCredit, ToHost,
};
