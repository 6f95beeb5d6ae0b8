//! The engine itself, for a client that is to go on when the agent is gone. Opened when it is first needed, and used from then on.

use std::sync::Arc;

use tokio::{runtime::Handle, sync::OnceCell};

use crate::{Broker, BrokerUrl, Result, connect};

pub(super) struct Direct {
    url: BrokerUrl,
    broker: OnceCell<Arc<dyn Broker>>,
    /// What the connections of an engine run on.
    runtime: Handle,
}

impl Direct {
    /// To be called on a runtime.
    pub(super) fn new(url: BrokerUrl) -> Self {
        Self {
            url,
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
        // Boxed: the client of an agent opens an engine, and engines are opened by what opens clients.
        self.broker
            .get_or_try_init(|| {
                Box::pin(async {
                    tracing::info!(url = %self.url, "nobody serves the broker any more: going on without");
                    connect(&self.url).await
                })
            })
            .await
    }
}
