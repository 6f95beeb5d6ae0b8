//! Somebody who hears of the workers in a registry.

use std::sync::Arc;

use async_trait::async_trait;
use raddle_broker::Result;
use raddle_pool::discovery::{Event, Filter, Subscription, Told};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

use super::{Inner, MOST_OFTEN, record};
use crate::worker::this_host;

/// Somebody who hears of the workers in a registry.
pub(super) struct Registered {
    inner: Arc<Inner>,
    told: Told,
    /// When it was looked at last.
    looked: Instant,
    doubts: watch::Receiver<()>,
    /// The broker did not answer.
    is_cut_off: bool,
}

impl Registered {
    /// Begins to listen. What is there is ready to be told.
    pub(super) async fn start(inner: Arc<Inner>, filter: Option<Filter>) -> Result<Self> {
        let (doubts, told) = (inner.doubts.subscribe(), Told::new(filter));
        let mut registered = Self { inner, told, looked: Instant::now(), doubts, is_cut_off: false };
        registered.look().await?;
        Ok(registered)
    }

    async fn look(&mut self) -> Result<()> {
        let entries = self.inner.broker.workers().await;
        self.looked = Instant::now();
        self.told.see(record::read(entries?, &self.inner.namespace, &this_host()));
        Ok(())
    }
}

#[async_trait]
impl Subscription for Registered {
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.told.next() {
                return Some(event);
            }
            // Whoever stops waiting here loses nothing: what was not looked at by then is looked at the next time.
            let doubted = async {
                // Who tells of doubts is part of this.
                let _ = self.doubts.changed().await;
                sleep_until(self.looked + MOST_OFTEN).await;
            };
            tokio::select! {
                () = sleep_until(self.looked + self.inner.every) => {}
                () = doubted => {}
            }
            match self.look().await {
                Ok(()) => self.is_cut_off = false,
                // A broker that does not answer takes no workers away.
                Err(error) if !std::mem::replace(&mut self.is_cut_off, true) => {
                    tracing::warn!(%error, "the registry cannot be read: the workers that are known stay");
                }
                Err(_) => {}
            }
        }
    }
}
