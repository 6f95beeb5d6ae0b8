//! Publishes workers under the address at which others find them.

use std::sync::Arc;

use async_trait::async_trait;

use crate::{
    WorkerMetadata,
    discovery::{DiscoveryError, Event, Publisher},
};

/// Publishes workers under the address at which others find them.
pub(super) struct Published<F> {
    pub(super) by: Arc<dyn Publisher>,
    /// From where a worker serves to where it is found.
    pub(super) found: F,
}

impl<F: Fn(&str) -> String> Published<F> {
    fn found(&self, worker: WorkerMetadata) -> WorkerMetadata {
        WorkerMetadata { address: (self.found)(&worker.address), ..worker }
    }
}

#[async_trait]
impl<F: Fn(&str) -> String + Send + Sync + 'static> Publisher for Published<F> {
    async fn publish(&self, event: Event) -> Result<(), DiscoveryError> {
        let event = match event {
            Event::Added(worker) => Event::Added(self.found(worker)),
            Event::Updated(worker) => Event::Updated(self.found(worker)),
            Event::Dropped(worker) => Event::Dropped(self.found(worker)),
        };
        self.by.publish(event).await
    }

    fn withdraw(&self, worker: &WorkerMetadata) {
        self.by.withdraw(&self.found(worker.clone()));
    }
}
