//! The conformance suite on the memory engine.

use std::sync::Arc;

use async_trait::async_trait;
use raddle_broker::{
    conformance,
    conformance::{Fixture, Handle},
    memory::Memory,
};

/// A broker in memory has no other place to be opened from: a second handle is the first.
struct InMemory(Handle);

#[async_trait]
impl Fixture for InMemory {
    fn broker(&self) -> &Handle {
        &self.0
    }

    async fn reopen(&self) -> Handle {
        self.0.clone()
    }
}

async fn make() -> InMemory {
    InMemory(Arc::new(Memory::new()))
}

conformance!(make);
