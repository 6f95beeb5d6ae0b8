//! Somebody who hears of the workers on the network.

use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::watch;

use super::hub::Hub;
use crate::discovery::{Event, Filter, Subscription, changes::Told};

/// Somebody who hears of the workers on the network.
pub(super) struct Lan {
    hub: Arc<Hub>,
    news: watch::Receiver<()>,
    told: Told,
}

impl Lan {
    /// What is there is ready to be told.
    pub(super) fn new(hub: Arc<Hub>, filter: Option<Filter>) -> Self {
        let mut told = Told::new(filter);
        // What comes after this is told.
        let news = hub.news();
        told.see(hub.workers());
        Self { hub, news, told }
    }
}

#[async_trait]
impl Subscription for Lan {
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.told.next() {
                return Some(event);
            }
            self.news.changed().await.ok()?;
            self.told.see(self.hub.workers());
        }
    }
}
