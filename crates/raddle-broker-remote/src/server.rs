//! The serving side: accepts connections, and gives back what could not be delivered.

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

/// How much an agent takes on.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// How many connections at a time. A worker has two, one of them for its lease; whoever comes after that is told to come later.
    pub connections: u32,
    /// How many calls at a time on each connection. Clients wait before they exceed it.
    pub in_flight: u32,
    /// Whom it is for, if it is for workers that are not trusted. Otherwise it serves its own user and root, with all there is.
    pub guests: Option<Arc<ContainerClients>>,
}

/// Serves a broker at a socket. See the [module](super) for what holds.
pub struct BrokerServer {
    listener: UnixListener,
    bound: BoundSocket,
    shared: Arc<ServerState>,
    returning: JoinHandle<()>,
}

/// What all connections share.
pub(super) struct ServerState {
    pub(super) broker: Arc<dyn Broker>,
    pub(super) options: Options,
    /// Room for large requests, in KiB.
    pub(super) budget: Arc<Semaphore>,
    pub(super) returns: ReturnSender,
}

/// All large requests together that are read or carried out at a time.
const BUDGET: usize = 4 * MAX_REQUEST;
/// How long calls that are under way may take once the agent is to end.
pub(super) const DRAIN: Duration = Duration::from_secs(2);
/// After the system has refused a connection, most often because there are too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// For how long tasks that go back are tried again, when the broker cannot take them: longer than it waits for a lock.
const RETURN_PATIENCE: Duration = Duration::from_secs(90);
const RETURN_PAUSE: Duration = Duration::from_millis(250);

impl Default for Options {
    fn default() -> Self {
        Self {
            connections: 4096,
            in_flight: 1024,
            guests: None,
        }
    }
}

impl Options {
    /// The other user who is served.
    fn guest(&self) -> Option<u32> {
        self.guests.as_ref()?.uid
    }

    /// Serves these alone.
    pub fn with_guests(self, guests: Option<ContainerClients>) -> Self {
        Self {
            guests: guests.map(Arc::new),
            ..self
        }
    }
}

impl BrokerServer {
    /// Takes the socket at `path`, in a directory that exists. One that a dead server has left behind is replaced.
    pub async fn bind(path: &Path, broker: Arc<dyn Broker>) -> Result<Self> {
        Self::bind_with(path, broker, Options::default()).await
    }

    /// As [`bind`](Self::bind), with bounds of one's own.
    pub async fn bind_with(path: &Path, broker: Arc<dyn Broker>, options: Options) -> Result<Self> {
        let (listener, bound) = socket::bind(path, options.guest()).await?;
        let refuse = |error: io::Error| Error::Socket {
            path: path.into(),
            reason: error.to_string(),
        };
        let listener = UnixListener::from_std(listener).map_err(refuse)?;
        let (returns, returned) = mpsc::unbounded_channel();
        // Apart from what `run` does, so that dropping that leaves it to end by itself, once all that was to go back has.
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

    /// Serves until `shutdown` is over. By then the socket is gone, calls that were under way have had a moment to end, and nothing is
    /// left of any connection.
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
                                    tracing::warn!(peer, %error, "a client was given up");
                                }
                            });
                        }
                    }
                    Err(error) => {
                        tracing::error!(%error, "no connection can be accepted");
                        sleep(ACCEPT_PAUSE).await;
                    }
                },
                Some(_) = sessions.join_next(), if !sessions.is_empty() => {}
                () = &mut shutdown => break,
            }
        }
        // The name first: whoever comes from here on is to find that nobody serves, or somebody else.
        drop(bound);
        drop(listener);
        let _ = down.send(true);
        let all = async { while sessions.join_next().await.is_some() {} };
        let _ = timeout(DRAIN + DRAIN, all).await;
        sessions.shutdown().await;
        drop(shared);
        if timeout(RETURN_PATIENCE, returning).await.is_err() {
            tracing::error!(
                "tasks that were not delivered could not be given back: their workers' leases hold them"
            );
        }
    }
}

/// Whether to serve a client; its process id if so.
fn admit(stream: &UnixStream, options: &Options, sessions: usize) -> Option<i32> {
    let peer = match stream.peer_cred() {
        Ok(peer) => peer,
        Err(error) => {
            tracing::warn!(%error, "a client was refused: the system does not say who it is");
            return None;
        }
    };
    let (pid, uid) = (peer.pid().unwrap_or(0), peer.uid());
    if !socket::may_ask(uid) && options.guest() != Some(uid) {
        tracing::warn!(pid, uid, "a client was refused: it is another user's");
        refuse(stream, "it serves its own user and root alone");
        return None;
    }
    if sessions >= options.connections as usize {
        tracing::warn!(pid, sessions, "a client was refused: there are too many");
        refuse(stream, super::protocol::BUSY);
        return None;
    }
    Some(pid)
}

/// Gives tasks back, until nobody is left who could send any.
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
                    tracing::error!(%error, "tasks that were not delivered could not be given back");
                    break;
                }
            }
        }
    }
}
