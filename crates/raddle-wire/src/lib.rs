//! What Raddle's workers understand: the gRPC service `raddle.v1.Worker` and its messages, generated from `proto/raddle/v1/worker.proto`, where
//! they are documented, and the frames of a link. No policy, no sockets.

pub mod frame;

/// What all messages can do, and what can be wrong with one.
pub use prost::{DecodeError, Message};

/// The service and the messages of version 1.
pub mod v1 {
    #![expect(
        missing_docs,
        clippy::all,
        clippy::allow_attributes,
        reason = "generated: the .proto has the documentation"
    )]
    include!("../generated/raddle.v1.rs");
}

/// Where a worker says which encodings it reads when it refuses a call for its own: the trailing metadata of this name.
pub const ENCODINGS: &str = "raddle-encodings";

/// The version that both sides must have in common, and that each says of itself. It grows when one side could misunderstand the other.
pub const PROTOCOL: u32 = 1;
