//! Streams of other programs as sources of messages.

use async_trait::async_trait;

use crate::Result;

/// A stream that other programs write to, whose entries become messages of a queue.
#[async_trait]
pub trait StreamSource: Send {
    /// Waits some seconds for entries, and moves those that are there to the queue, in one step: each once, however many do this. Returns how many,
    /// when they are durable.
    async fn transfer(&mut self) -> Result<u64>;
}
