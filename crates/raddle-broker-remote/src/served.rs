//! A server as a background task.

use std::{path::Path, sync::Arc};

use tokio::{sync::oneshot, task::JoinHandle};

use super::{BrokerServer, Options};
use raddle_broker::{Broker, Result};

/// A broker that is served until this is stopped or dropped.
pub struct ServedBroker {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl ServedBroker {
    /// Binds the socket at `path` like [`BrokerServer::bind`], and serves.
    pub async fn start(path: &Path, broker: Arc<dyn Broker>) -> Result<Self> {
        Self::start_with(path, broker, Options::default()).await
    }

    /// Like [`start`](Self::start), with options.
    pub async fn start_with(
        path: &Path,
        broker: Arc<dyn Broker>,
        options: Options,
    ) -> Result<Self> {
        let agent = BrokerServer::bind_with(path, broker, options).await?;
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(agent.run(async { drop(stopped.await) }));
        Ok(Self { stop, task })
    }

    /// Stops, and returns when the socket is removed and all connections are closed.
    pub async fn stop(self) {
        drop(self.stop);
        let _ = self.task.await;
    }
}
