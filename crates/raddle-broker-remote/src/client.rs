//! The client: a broker in another process.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use raddle_model::Tid;

use super::{connection::RemoteConnection, fallback::Fallback, lease_renewer::RemoteLeaseRenewer};
use raddle_broker::{
    BrokerOpener, Call, CallHandler, Error, HealthCheck, LeaseRenewer, Leases, Reply, Result,
    engine::UnconfirmedCompletions,
};

/// A broker that another process serves. When that process ends, calls fail with a retryable error,
/// and the next call connects to its successor.
pub struct Remote {
    path: PathBuf,
    connection: Mutex<Option<Arc<RemoteConnection>>>,
    /// Held while connecting, so that concurrent calls share one connection.
    connecting: tokio::sync::Mutex<()>,
    unconfirmed: UnconfirmedCompletions,
    fallback: Option<Arc<Fallback>>,
}

impl Remote {
    /// Connects to the server at `path`.
    pub async fn connect(path: &Path) -> Result<Self> {
        let remote = Self::new(path, None);
        remote.connection().await?;
        Ok(remote)
    }

    /// Connects to the server at `path`, or opens `opener` if there is no server, now or later: for
    /// a worker that must finish its tasks even if the process that started it is gone.
    pub async fn connect_or(path: &Path, opener: impl BrokerOpener) -> Result<Self> {
        let remote = Self::new(path, Some(Arc::new(Fallback::new(Box::new(opener)))));
        match (remote.connection().await, &remote.fallback) {
            (Err(Error::AgentGone { .. }), Some(fallback)) => drop(fallback.broker().await?),
            (connection, _) => drop(connection?),
        }
        Ok(remote)
    }

    fn new(path: &Path, fallback: Option<Arc<Fallback>>) -> Self {
        Self {
            path: path.into(),
            connection: Mutex::default(),
            connecting: tokio::sync::Mutex::default(),
            unconfirmed: UnconfirmedCompletions::default(),
            fallback,
        }
    }

    /// The connection, opened if there is none.
    async fn connection(&self) -> Result<Arc<RemoteConnection>> {
        let present = || {
            let connection = self
                .connection
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone();
            connection.filter(|connection| !connection.is_gone())
        };
        if let Some(connection) = present() {
            return Ok(connection);
        }
        let _connecting = self.connecting.lock().await;
        if let Some(connection) = present() {
            return Ok(connection);
        }
        let connection = Arc::new(RemoteConnection::open(&self.path).await?);
        *self
            .connection
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&connection));
        Ok(connection)
    }

    fn uses_fallback(&self) -> bool {
        self.fallback
            .as_ref()
            .is_some_and(|fallback| fallback.is_open())
    }

    /// Calls the server, or the engine itself if the server is gone. Nothing is awaited after the
    /// reply has arrived, so that claims are not lost.
    async fn call_any(&self, call: Call) -> Result<Reply> {
        let gone = match self.uses_fallback() {
            true => Error::Closed,
            false => match self.call_server(&call).await {
                Err(error @ Error::AgentGone { .. }) => error,
                answer => return answer,
            },
        };
        match &self.fallback {
            Some(fallback) => call.perform(&**fallback.broker().await?).await,
            None => Err(gone),
        }
    }

    async fn call_server(&self, call: &Call) -> Result<Reply> {
        Ok(self.connection().await?.call(call).await?.take())
    }
}

/// Calls that need more than forwarding.
#[async_trait]
impl CallHandler for Remote {
    async fn call(&self, call: Call) -> Result<Reply> {
        match call {
            Call::Complete { batch } => {
                let send = async |batch| match self.call_any(Call::Complete { batch }).await? {
                    Reply::Complete(verdicts) => Ok(verdicts),
                    _ => Err(Error::Closed),
                };
                Ok(Reply::Complete(
                    self.unconfirmed.complete(self, batch, send).await?,
                ))
            }
            Call::Health {} => {
                let mut reply = self.call_any(call).await?;
                if let (Reply::Health(health), false) = (&mut reply, self.uses_fallback()) {
                    let server = self
                        .connection()
                        .await?
                        .server()
                        .map(|pid| format!(" by process {pid}"));
                    let (engine, path) = (&health.engine, self.path.display());
                    let detail =
                        format!("{engine} is served{} at {path}", server.unwrap_or_default());
                    health.checks.insert(
                        0,
                        HealthCheck {
                            name: "agent".into(),
                            ok: true,
                            detail,
                            fix: None,
                        },
                    );
                }
                Ok(reply)
            }
            call => self.call_any(call).await,
        }
    }
}

impl Leases for Remote {
    fn lease_renewer(&self, worker: Tid, ttl: Duration) -> Box<dyn LeaseRenewer> {
        Box::new(RemoteLeaseRenewer::new(
            self.path.clone(),
            worker,
            ttl,
            self.fallback.clone(),
        ))
    }
}
