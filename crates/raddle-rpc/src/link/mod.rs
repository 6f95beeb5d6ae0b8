//! Many calls over one connection, without gRPC: what both of its ends have in common. The client's end is `connection/link.rs`, the worker's
//! `serve/link.rs`; the frames are in `raddle-wire`.
//!
//! What it saves is threads that wake each other. Whoever has something to say says it, on the thread that it is on, unless there is much to
//! say: then it is gathered, and somebody else says all of it at once.

mod reader;
mod socket;
mod writer;

pub(crate) use self::{
    reader::{LinkReader, ReadAmount},
    socket::{Acknowledged, LinkSocket},
    writer::{FlushMode, LinkClosed, LinkWriter},
};

/// So much may be on its way before the client has taken any of it. A small item counts as one.
pub(crate) const WINDOW: u32 = 256;

/// As long as no more calls than this are in flight, each word of theirs is sent at once.
pub(crate) const FEW: usize = 2;

/// More credit than this at a time is nonsense. It is far more than anybody needs who gives it for what was taken.
pub(crate) const MOST_CREDIT: u32 = 1 << 20;

/// Who takes items gives credit for them when they have come to so much. No item counts for more: else it could wait for credit that is only given
/// when more has been taken.
pub(crate) const HALF: u32 = WINDOW / 2;

/// What an item of so many bytes counts.
pub(crate) fn cost(bytes: usize) -> u32 {
    1 + (bytes / (16 * 1024)).min(HALF as usize - 1) as u32
}
