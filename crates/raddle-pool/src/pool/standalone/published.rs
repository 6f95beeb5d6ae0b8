//! Publishes workers under the address at which others find them.

use std::sync::Arc;

use async_trait::async_trait;

use super::place::{self, Advertise};
use crate::{
    WorkerMetadata,
    connection::Address,
    discovery::{DiscoveryError, Event, Publisher},
};

/// Publishes workers under the address at which others find them.
pub(super) struct Published {
    by: Arc<dyn Publisher>,
    found: Found,
}

/// Where others find workers.
#[derive(Clone)]
pub(super) enum Found {
    /// Where it is said, if they were to serve there.
    At(Advertise, Option<Address>),
    /// On this machine.
    Nearby,
    /// Where they serve. What that means if it is everywhere is up to who publishes it.
    AsServed,
}

impl Published {
    pub(super) fn new(by: Arc<dyn Publisher>, found: Found) -> Self {
        Self { by, found }
    }

    fn found(&self, worker: WorkerMetadata) -> WorkerMetadata {
        let address = match &self.found {
            Found::At(advertise, bind) => advertise.of(&worker.address, bind.as_ref()),
            Found::Nearby => place::nearby(&worker.address),
            Found::AsServed => return worker,
        };
        WorkerMetadata { address, ..worker }
    }
}

#[async_trait]
impl Publisher for Published {
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
