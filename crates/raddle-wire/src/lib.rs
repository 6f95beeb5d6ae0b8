//! The wire protocol of Raddle's workers: the gRPC service `raddle.v1.Worker` and its messages,
//! generated from `proto/raddle/v1/worker.proto`, which documents them; and the frames of a link.
//! It holds no policy and no sockets.

pub mod frame;

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

/// Trailing metadata key: when a worker refuses the encoding of a call, it lists the encodings that
/// it reads here.
pub const ENCODINGS: &str = "raddle-encodings";

/// Protocol version. Both sides announce theirs, and they must match. It increases when one side
/// could misunderstand the other.
pub const PROTOCOL: u32 = 1;
