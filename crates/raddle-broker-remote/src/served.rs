//! An agent that runs beside what else its process does.

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
    /// Takes the socket at `path`, as [`BrokerServer::bind`] does, and serves there.
    pub async fn start(path: &Path, broker: Arc<dyn Broker>) -> Result<Self> {
        Self::start_with(path, broker, Options::default()).await
    }

    /// As [`start`](Self::start), with bounds of one's own.
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

    /// Stops, and returns when the socket is gone and nothing is left of any connection.
    pub async fn stop(self) {
        drop(self.stop);
        let _ = self.task.await;
    }
}
