//! Links: many calls over one connection, without gRPC. This module holds what both ends share; the
//! client's end is `connection/link.rs`, the worker's `serve/link.rs`, and the frames are in
//! `raddle-wire`.
//!
//! Compared with gRPC, a link saves wake-ups between threads: a thread that has something to send
//! writes it to the socket itself. Only when many calls are in flight are messages gathered, and
//! one task writes all of them at once.

mod reader;
mod socket;
mod writer;

pub(crate) use self::{
    reader::{LinkReader, ReadAmount},
    socket::{Acknowledged, LinkSocket},
    writer::{FlushMode, LinkClosed, LinkWriter},
};

/// Credit window: weight of items that may be in transit before the client has read any. A small
/// item weighs 1.
pub(crate) const CREDIT_WINDOW: u32 = 256;

/// Up to this many calls in flight, each message is written at once.
pub(crate) const FEW_CALLS: usize = 2;

/// Largest credit that a client may grant at once; more is a protocol error. Honest clients grant
/// at most the window.
pub(crate) const MAX_CREDIT: u32 = 1 << 20;

/// A reader grants credit when it has read items of this weight. No item weighs more: otherwise a
/// sender could wait for credit that is only granted after it has sent more.
pub(crate) const CREDIT_STEP: u32 = CREDIT_WINDOW / 2;

/// Weight of an item of this size.
pub(crate) fn item_weight(bytes: usize) -> u32 {
    1 + (bytes / (16 * 1024)).min(CREDIT_STEP as usize - 1) as u32
}
