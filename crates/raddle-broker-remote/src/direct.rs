//! The engine itself, for a client that is to go on when the agent is gone. Opened when it is first needed, and used from then on.

use std::sync::Arc;

use tokio::{runtime::Handle, sync::OnceCell};

use raddle_broker::{Broker, BrokerOpener, Result};

pub(super) struct Direct {
    opener: Box<dyn BrokerOpener>,
    broker: OnceCell<Arc<dyn Broker>>,
    /// What the connections of an engine run on.
    runtime: Handle,
}

impl Direct {
    /// To be called on a runtime.
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

    /// Opens it from a thread that is none of the runtime's.
    pub(super) fn open_blocking(&self) -> Result<&Arc<dyn Broker>> {
        self.runtime.block_on(self.broker())
    }

    pub(super) async fn broker(&self) -> Result<&Arc<dyn Broker>> {
        self.broker
            .get_or_try_init(async || {
                tracing::info!(url = %self.opener, "nobody serves the broker any more: going on without");
                self.opener.open().await
            })
            .await
    }
}
