//! Publishes workers under the address at which others find them.

use std::sync::Arc;

use async_trait::async_trait;
use raddle_discovery::{DiscoveryError, DiscoveryEvent, Publisher, WorkerMetadata};

/// Publishes workers under the address at which others find them.
pub(super) struct AdvertisedPublisher<F> {
    pub(super) by: Arc<dyn Publisher>,
    /// From where a worker serves to where it is found.
    pub(super) found: F,
}

impl<F: Fn(&str) -> String> AdvertisedPublisher<F> {
    fn found(&self, worker: WorkerMetadata) -> WorkerMetadata {
        WorkerMetadata {
            address: (self.found)(&worker.address),
            ..worker
        }
    }
}

#[async_trait]
impl<F: Fn(&str) -> String + Send + Sync + 'static> Publisher for AdvertisedPublisher<F> {
    async fn publish(&self, event: DiscoveryEvent) -> Result<(), DiscoveryError> {
        let event = match event {
            DiscoveryEvent::Added(worker) => DiscoveryEvent::Added(self.found(worker)),
            DiscoveryEvent::Updated(worker) => DiscoveryEvent::Updated(self.found(worker)),
            DiscoveryEvent::Dropped(worker) => DiscoveryEvent::Dropped(self.found(worker)),
        };
        self.by.publish(event).await
    }

    fn withdraw(&self, worker: &WorkerMetadata) {
        self.by.withdraw(&self.found(worker.clone()));
    }
}
