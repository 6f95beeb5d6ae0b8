//! A publisher that replaces listening addresses by public ones.

use std::sync::Arc;

use async_trait::async_trait;
use raddle_discovery::{DiscoveryError, DiscoveryEvent, Publisher, WorkerMetadata};

/// Publishes workers under their public addresses.
pub(super) struct AdvertisedPublisher<F> {
    pub(super) inner: Arc<dyn Publisher>,
    /// Maps the listening address to the public one.
    pub(super) map_address: F,
}

impl<F: Fn(&str) -> String> AdvertisedPublisher<F> {
    fn with_public_address(&self, worker: WorkerMetadata) -> WorkerMetadata {
        WorkerMetadata {
            address: (self.map_address)(&worker.address),
            ..worker
        }
    }
}

#[async_trait]
impl<F: Fn(&str) -> String + Send + Sync + 'static> Publisher for AdvertisedPublisher<F> {
    async fn publish(&self, event: DiscoveryEvent) -> Result<(), DiscoveryError> {
        let event = match event {
            DiscoveryEvent::Added(worker) => {
                DiscoveryEvent::Added(self.with_public_address(worker))
            }
            DiscoveryEvent::Updated(worker) => {
                DiscoveryEvent::Updated(self.with_public_address(worker))
            }
            DiscoveryEvent::Dropped(worker) => {
                DiscoveryEvent::Dropped(self.with_public_address(worker))
            }
        };
        self.inner.publish(event).await
    }

    fn withdraw(&self, worker: &WorkerMetadata) {
        self.inner
            .withdraw(&self.with_public_address(worker.clone()));
    }
}
