//! What all handlers share.

use std::sync::Arc;

use raddle_broker::Broker;
use raddle_telemetry::metrics::QueueExporter;
use raddle_view::failures::FailureReader;
use tokio::sync::{Mutex, Semaphore, watch};

use crate::{
    Options,
    audit::Strangers,
    auth::{Throttle, TokenCache},
    live::Hub,
};

/// The most open streams.
const MAX_STREAMS: usize = 256;

/// What all handlers share.
#[derive(Clone)]
pub(crate) struct AppState(Arc<Shared>);

pub(crate) struct Shared {
    /// The broker.
    pub(crate) broker: Arc<dyn Broker>,
    /// The settings.
    pub(crate) options: Options,
    /// The tokens that the broker knows.
    pub(crate) tokens: TokenCache,
    /// Wrong tokens in the last minute.
    pub(crate) throttle: Throttle,
    /// Requests of those who are not signed in.
    pub(crate) strangers: Strangers,
    /// Bounds the open streams.
    pub(crate) streams: Arc<Semaphore>,
    /// The metrics of the broker.
    pub(crate) metrics: QueueExporter,
    /// Remembers the last lines of failed tasks.
    pub(crate) failures: Mutex<FailureReader>,
    /// Fans changes out to live pages.
    #[expect(dead_code, reason = "no page is live yet")]
    pub(crate) live: Hub,
    stopping: watch::Sender<bool>,
}

impl AppState {
    pub(crate) fn new(broker: Arc<dyn Broker>, options: Options) -> Self {
        Self(Arc::new(Shared {
            metrics: QueueExporter::new(Arc::clone(&broker)),
            broker,
            options,
            tokens: TokenCache::default(),
            throttle: Throttle::default(),
            strangers: Strangers::default(),
            streams: Arc::new(Semaphore::new(MAX_STREAMS)),
            failures: Mutex::default(),
            live: Hub::default(),
            stopping: watch::Sender::new(false),
        }))
    }

    /// The broker.
    pub(crate) fn broker(&self) -> &dyn Broker {
        &*self.0.broker
    }

    /// A path of this interface as browsers see it. `path` begins with `/`.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("{}{path}", self.0.options.prefix)
    }

    /// Ends when the server stops. Each open stream ends with it: a graceful stop waits for
    /// responses that are under way.
    pub(crate) async fn stopping(&self) {
        let mut stopping = self.0.stopping.subscribe();
        // The sender lives as long as `self`.
        let _ = stopping.wait_for(|is_stopping| *is_stopping).await;
    }

    pub(crate) fn stop(&self) {
        self.0.stopping.send_replace(true);
    }
}

impl std::ops::Deref for AppState {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}
