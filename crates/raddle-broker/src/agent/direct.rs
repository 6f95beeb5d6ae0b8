//! The engine itself, for a client that is to go on when the agent is gone. Opened when it is first needed, and used from then on.

use std::sync::Arc;

use tokio::sync::OnceCell;

use super::{
    perform::{Chest, plain},
    protocol::{Call, DONE, HEADER, header, read},
};
use crate::{Broker, Error, Result, Url, connect};

pub(super) struct Direct {
    url: Url,
    broker: OnceCell<Arc<dyn Broker>>,
}

impl Direct {
    pub(super) fn new(url: Url) -> Self {
        Self { url, broker: OnceCell::new() }
    }

    pub(super) fn is_open(&self) -> bool {
        self.broker.initialized()
    }

    pub(super) fn opened(&self) -> Option<&Arc<dyn Broker>> {
        self.broker.get()
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

    /// Does what the agent would have done.
    pub(super) async fn call(&self, call: Call) -> Result<Vec<u8>> {
        let mut frame = plain(self.broker().await?, call, 0, Chest::default()).await;
        let head = frame.first_chunk::<HEADER>().ok_or(Error::Closed)?;
        let (kind, ..) = header(head);
        frame.drain(..HEADER);
        if kind == DONE {
            return Ok(frame);
        }
        Err(read(&frame).unwrap_or(Error::Closed))
    }
}
