//! The server: accepts connections, and releases claims that could not be delivered.

use std::{future::Future, io, path::Path, sync::Arc, time::Duration};

use tokio::{
    net::{UnixListener, UnixStream},
    sync::{Semaphore, mpsc, watch},
    task::{JoinHandle, JoinSet},
    time::{Instant, sleep, timeout},
};

use super::{
    container_clients::ContainerClients,
    dispatch::ReturnSender,
    protocol::MAX_REQUEST,
    session::{Session, refuse},
    socket::{self, BoundSocket},
};
use raddle_broker::{Broker, Error, Release, Result};

/// Options of a server.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// The limit of connections. A worker has two, one of them for its lease. Further clients are
    /// told to come later.
    pub connections: u32,
    /// The limit of concurrent calls per connection, which clients observe.
    pub in_flight: u32,
    /// Restrictions for container workers, which are not trusted. Without them the server serves
    /// its own user and root without limits.
    pub container_clients: Option<Arc<ContainerClients>>,
}

/// Serves a broker at a socket. See the [module](super) for its guarantees.
pub struct BrokerServer {
    listener: UnixListener,
    bound: BoundSocket,
    shared: Arc<ServerState>,
    returning: JoinHandle<()>,
}

/// State that all connections share.
pub(super) struct ServerState {
    pub(super) broker: Arc<dyn Broker>,
    pub(super) options: Options,
    /// The budget for large requests, in KiB.
    pub(super) budget: Arc<Semaphore>,
    pub(super) returns: ReturnSender,
}

/// The sum of large requests that are read or performed at a time.
const BUDGET: usize = 4 * MAX_REQUEST;
/// How long calls may go on after shutdown.
pub(super) const DRAIN: Duration = Duration::from_secs(2);
/// The pause after a failed accept, most often because of too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long releasing undelivered claims is retried: longer than a broker waits for its lock.
const RETURN_PATIENCE: Duration = Duration::from_secs(90);
const RETURN_PAUSE: Duration = Duration::from_millis(250);

impl Default for Options {
    fn default() -> Self {
        Self {
            connections: 4096,
            in_flight: 1024,
            container_clients: None,
        }
    }
}

impl Options {
    /// The user of the containers, if another than this one.
    fn container_user(&self) -> Option<u32> {
        self.container_clients.as_ref()?.uid
    }

    /// Restricts the server to container workers.
    pub fn with_container_clients(self, container_clients: Option<ContainerClients>) -> Self {
        Self {
            container_clients: container_clients.map(Arc::new),
            ..self
        }
    }
}

impl BrokerServer {
    /// Binds the socket at `path`, in an existing directory. Replaces the socket of a dead server.
    pub async fn bind(path: &Path, broker: Arc<dyn Broker>) -> Result<Self> {
        Self::bind_with(path, broker, Options::default()).await
    }

    /// Like [`bind`](Self::bind), with options.
    pub async fn bind_with(path: &Path, broker: Arc<dyn Broker>, options: Options) -> Result<Self> {
        let (listener, bound) = socket::bind(path, options.container_user()).await?;
        let refuse = |error: io::Error| Error::Socket {
            path: path.into(),
            reason: error.to_string(),
        };
        let listener = UnixListener::from_std(listener).map_err(refuse)?;
        let (returns, returned) = mpsc::unbounded_channel();
        // A task of its own, so that it releases all claims even if `run` is dropped.
        let returning = tokio::spawn(give_back(Arc::clone(&broker), returned));
        let budget = Arc::new(Semaphore::new(BUDGET / 1024));
        Ok(Self {
            listener,
            bound,
            shared: Arc::new(ServerState {
                broker,
                options,
                budget,
                returns,
            }),
            returning,
        })
    }

    /// Serves until `shutdown` resolves. When this returns, the socket is removed, running calls
    /// have had a moment to end, and all connections are closed.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        let Self {
            listener,
            bound,
            shared,
            returning,
        } = self;
        let (down, is_down) = watch::channel(false);
        let mut sessions = JoinSet::new();
        let mut shutdown = std::pin::pin!(shutdown);
        loop {
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => {
                        if let Some(peer) = admit(&stream, &shared.options, sessions.len()) {
                            let session = Session::new(Arc::clone(&shared)).run(stream, is_down.clone());
                            sessions.spawn(async move {
                                if let Err(error) = session.await {
                                    tracing::warn!(peer, %error, "closed the connection of a client");
                                }
                            });
                        }
                    }
                    Err(error) => {
                        tracing::error!(%error, "cannot accept a connection");
                        sleep(ACCEPT_PAUSE).await;
                    }
                },
                Some(_) = sessions.join_next(), if !sessions.is_empty() => {}
                () = &mut shutdown => break,
            }
        }
        // Remove the socket first, so that new clients find no server, or its successor.
        drop(bound);
        drop(listener);
        let _ = down.send(true);
        let all = async { while sessions.join_next().await.is_some() {} };
        let _ = timeout(DRAIN + DRAIN, all).await;
        sessions.shutdown().await;
        drop(shared);
        if timeout(RETURN_PATIENCE, returning).await.is_err() {
            tracing::error!(
                "could not release tasks that were not delivered: they stay leased until their workers' leases expire"
            );
        }
    }
}

/// Decides whether to serve a client; returns its process id.
fn admit(stream: &UnixStream, options: &Options, sessions: usize) -> Option<i32> {
    let peer = match stream.peer_cred() {
        Ok(peer) => peer,
        Err(error) => {
            tracing::warn!(%error, "refused a client: its user is unknown");
            return None;
        }
    };
    let (pid, uid) = (peer.pid().unwrap_or(0), peer.uid());
    if !socket::is_allowed_peer(uid) && options.container_user() != Some(uid) {
        tracing::warn!(pid, uid, "refused a client: it runs as another user");
        refuse(stream, "it serves only its own user and root");
        return None;
    }
    if sessions >= options.connections as usize {
        tracing::warn!(pid, sessions, "refused a client: too many connections");
        refuse(stream, super::protocol::BUSY);
        return None;
    }
    Some(pid)
}

/// Releases undelivered claims until all senders are gone.
async fn give_back(broker: Arc<dyn Broker>, mut returned: mpsc::UnboundedReceiver<Vec<Release>>) {
    while let Some(batch) = returned.recv().await {
        let deadline = Instant::now() + RETURN_PATIENCE;
        loop {
            match broker.release(batch.clone()).await {
                Ok(_) => break,
                Err(error) if error.is_retryable() && Instant::now() < deadline => {
                    sleep(RETURN_PAUSE).await
                }
                Err(error) => {
                    tracing::error!(%error, "could not release tasks that were not delivered");
                    break;
                }
            }
        }
    }
}
