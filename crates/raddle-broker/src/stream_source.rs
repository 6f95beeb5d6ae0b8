//! Streams that other programs write to.

use async_trait::async_trait;

use crate::Result;

/// A stream that other programs write to, whose entries become messages of a queue.
#[async_trait]
pub trait StreamSource: Send {
    /// Waits some seconds for entries and moves them to the queue in one transaction, each once,
    /// however many processes do this. Returns the number when they are durable.
    async fn transfer(&mut self) -> Result<u64>;
}
