//! The asking side: a broker that is in another process.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use raddle_model::Tid;

use super::{connection::RemoteConnection, direct::Direct, lease_renewer::RemoteLeaseRenewer};
use raddle_broker::{
    BrokerOpener, Call, CallHandler, Error, HealthCheck, LeaseRenewer, Leases, Reply, Result,
    engine::UnconfirmedCompletions,
};

/// A broker that another process serves. When that ends, calls fail with an error that can be retried, and the next one looks for
/// whoever serves there then.
pub struct Remote {
    path: PathBuf,
    link: Mutex<Option<Arc<RemoteConnection>>>,
    /// Held while a connection is made, so that calls which find none share one.
    connecting: tokio::sync::Mutex<()>,
    unconfirmed: UnconfirmedCompletions,
    direct: Option<Arc<Direct>>,
}

impl Remote {
    /// Connects to the agent at `path`.
    pub async fn connect(path: &Path) -> Result<Self> {
        let remote = Self::new(path, None);
        remote.link().await?;
        Ok(remote)
    }

    /// Connects to the agent at `path`, and to what `opener` opens instead when nobody serves there, or from when on nobody does: for a worker that has
    /// to finish what it runs also without whoever started it.
    pub async fn connect_or(path: &Path, opener: impl BrokerOpener) -> Result<Self> {
        let remote = Self::new(path, Some(Arc::new(Direct::new(Box::new(opener)))));
        match (remote.link().await, &remote.direct) {
            (Err(Error::AgentGone { .. }), Some(direct)) => drop(direct.broker().await?),
            (link, _) => drop(link?),
        }
        Ok(remote)
    }

    fn new(path: &Path, direct: Option<Arc<Direct>>) -> Self {
        Self {
            path: path.into(),
            link: Mutex::default(),
            connecting: tokio::sync::Mutex::default(),
            unconfirmed: UnconfirmedCompletions::default(),
            direct,
        }
    }

    /// The connection, made anew if there is none.
    async fn link(&self) -> Result<Arc<RemoteConnection>> {
        let present = || {
            let link = self
                .link
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone();
            link.filter(|link| !link.is_gone())
        };
        if let Some(link) = present() {
            return Ok(link);
        }
        let _connecting = self.connecting.lock().await;
        if let Some(link) = present() {
            return Ok(link);
        }
        let link = Arc::new(RemoteConnection::open(&self.path).await?);
        *self.link.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&link));
        Ok(link)
    }

    fn goes_direct(&self) -> bool {
        self.direct.as_ref().is_some_and(|direct| direct.is_open())
    }

    /// Asks the agent, or the engine itself where there is no agent any more. Nothing is awaited after the answer is there.
    async fn ask(&self, call: Call) -> Result<Reply> {
        let gone = match self.goes_direct() {
            true => Error::Closed,
            false => match self.ask_agent(&call).await {
                Err(error @ Error::AgentGone { .. }) => error,
                answer => return answer,
            },
        };
        match &self.direct {
            Some(direct) => call.perform(&**direct.broker().await?).await,
            None => Err(gone),
        }
    }

    async fn ask_agent(&self, call: &Call) -> Result<Reply> {
        Ok(self.link().await?.call(call).await?.take())
    }
}

/// What is more than to ask.
#[async_trait]
impl CallHandler for Remote {
    async fn call(&self, call: Call) -> Result<Reply> {
        match call {
            Call::Complete { batch } => {
                let send = async |batch| match self.ask(Call::Complete { batch }).await? {
                    Reply::Complete(verdicts) => Ok(verdicts),
                    _ => Err(Error::Closed),
                };
                Ok(Reply::Complete(
                    self.unconfirmed.complete(self, batch, send).await?,
                ))
            }
            Call::Health {} => {
                let mut reply = self.ask(call).await?;
                if let (Reply::Health(health), false) = (&mut reply, self.goes_direct()) {
                    let server = self
                        .link()
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
            call => self.ask(call).await,
        }
    }
}

impl Leases for Remote {
    fn lease_renewer(&self, worker: Tid, ttl: Duration) -> Box<dyn LeaseRenewer> {
        Box::new(RemoteLeaseRenewer::new(
            self.path.clone(),
            worker,
            ttl,
            self.direct.clone(),
        ))
    }
}
