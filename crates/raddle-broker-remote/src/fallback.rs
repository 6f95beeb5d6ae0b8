//! The engine itself, for a client that outlives the server. Opened when it is first needed, and
//! kept.

use std::sync::Arc;

use tokio::{runtime::Handle, sync::OnceCell};

use raddle_broker::{Broker, BrokerOpener, Result};

pub(super) struct Fallback {
    opener: Box<dyn BrokerOpener>,
    broker: OnceCell<Arc<dyn Broker>>,
    /// The runtime of the engine's connections.
    runtime: Handle,
}

impl Fallback {
    /// Must be called on a runtime.
    pub(super) fn new(opener: Box<dyn BrokerOpener>) -> Self {
        Self {
            opener,
            broker: OnceCell::new(),
            runtime: Handle::current(),
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.broker.initialized()
    }

    pub(super) fn opened(&self) -> Option<&Arc<dyn Broker>> {
        self.broker.get()
    }

    /// Opens the engine from a thread outside of the runtime.
    pub(super) fn open_blocking(&self) -> Result<&Arc<dyn Broker>> {
        self.runtime.block_on(self.broker())
    }

    pub(super) async fn broker(&self) -> Result<&Arc<dyn Broker>> {
        self.broker
            .get_or_try_init(async || {
                tracing::info!(url = %self.opener, "the broker is no longer served: opening it directly");
                self.opener.open().await
            })
            .await
    }
}
