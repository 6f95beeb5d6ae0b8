//! Accepts connections: TLS handshake, transport detection, and hand-over to a link or to the gRPC
//! server.

use std::{collections::HashMap, io, net::IpAddr, sync::Arc, time::Duration};

use futures_util::{Stream as ClientStream, stream::poll_fn};
use raddle_wire::frame::GREETING;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::mpsc::{self, Sender},
    task::AbortHandle,
    time::{sleep, timeout},
};
use tokio_rustls::TlsAcceptor;

use super::{
    authorizer::PeerOrigin,
    executor::Executor,
    grpc_connection::{GrpcConnection, PREFACE},
    link::LinkServer,
    listener::Listener,
};
use crate::stream::WorkerStream;

/// Time limit for the TLS handshake and the first bytes.
const SETUP_TIMEOUT: Duration = Duration::from_secs(10);
/// Largest number of connections in that phase. An honest client passes it at once; with more, one
/// is closed.
const MAX_PENDING: usize = 256;
/// Pause after `accept` has failed: no descriptor is free, and a connection that ends frees one.
const RETRY_PAUSE: Duration = Duration::from_millis(50);
/// Connections queued for the gRPC server, which takes them at once.
const GRPC_QUEUE: usize = 16;

/// Accepts connections.
pub(super) struct Acceptor {
    pub(super) links: Arc<LinkServer>,
    pub(super) executor: Arc<Executor>,
    /// Clients on TCP must authenticate.
    pub(super) tls: Option<TlsAcceptor>,
}

/// A connection that is not established yet.
struct PendingConnection {
    origin: PeerOrigin,
    task: AbortHandle,
}

impl Acceptor {
    /// Starts accepting. Returns the gRPC connections; the others become links.
    pub(super) fn start(
        self,
        listener: Listener,
    ) -> impl ClientStream<Item = io::Result<GrpcConnection>> {
        let (grpc, mut clients) = mpsc::channel(GRPC_QUEUE);
        // Ends with the process.
        tokio::spawn(Arc::new(self).accept_loop(listener, grpc));
        poll_fn(move |cx| clients.poll_recv(cx))
    }

    async fn accept_loop(
        self: Arc<Self>,
        listener: Listener,
        grpc: Sender<io::Result<GrpcConnection>>,
    ) {
        let mut pending: Vec<PendingConnection> = Vec::new();
        loop {
            let client = match listener.accept().await {
                Ok(client) => client,
                Err(error) => {
                    self.executor.setup.authorizer.record_accept_error(&error);
                    if error.kind() != io::ErrorKind::PermissionDenied {
                        sleep(RETRY_PAUSE).await;
                    }
                    continue;
                }
            };
            let origin = client.peer_ip();
            pending.retain(|one| !one.task.is_finished());
            if pending.len() >= MAX_PENDING {
                let origins: Vec<PeerOrigin> = pending.iter().map(|one| one.origin).collect();
                let evicted = pending.remove(oldest_of_largest_origin(&origins));
                evicted.task.abort();
                self.executor
                    .setup
                    .authorizer
                    .record_setup_failure(&io::ErrorKind::TimedOut.into(), evicted.origin);
            }
            let (acceptor, grpc) = (Arc::clone(&self), grpc.clone());
            // Ends at the latest after the time limit.
            let task = tokio::spawn(async move {
                let outcome =
                    timeout(SETUP_TIMEOUT, acceptor.establish(client, origin, grpc)).await;
                if let Err(error) = outcome.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
                {
                    acceptor
                        .executor
                        .setup
                        .authorizer
                        .record_setup_failure(&error, origin);
                }
            });
            pending.push(PendingConnection {
                origin,
                task: task.abort_handle(),
            });
        }
    }

    async fn establish(
        &self,
        client: WorkerStream,
        origin: PeerOrigin,
        grpc: Sender<io::Result<GrpcConnection>>,
    ) -> io::Result<()> {
        let mut client = match &self.tls {
            Some(acceptor) => client.accept_tls(acceptor).await?,
            None => client,
        };
        let peer = client.peer().map_err(io::Error::other)?;
        let caller = self
            .executor
            .setup
            .authorizer
            .admit(peer, origin, client.is_local());
        let mut first_bytes = [0; GREETING.len()];
        client.io().read_exact(&mut first_bytes).await?;
        if PREFACE.starts_with(&first_bytes) {
            let mut rest = [0; PREFACE.len() - GREETING.len()];
            client.io().read_exact(&mut rest).await?;
            if !PREFACE.ends_with(&rest) {
                return Err(io::ErrorKind::InvalidData.into());
            }
            let connection = GrpcConnection::new(client, caller, self.links.limiter.clock());
            if self.links.limiter.admit(connection.peer()) {
                // Fails only when the worker is stopping.
                let _ = grpc.send(Ok(connection)).await;
            }
            return Ok(());
        }
        if first_bytes[0] == GREETING[0] {
            // A client of another link version learns this version, and falls back to gRPC.
            client.io().write_all(&GREETING).await?;
            client.io().flush().await?;
        }
        if first_bytes != GREETING {
            return Err(io::ErrorKind::InvalidData.into());
        }
        self.links
            .start(client.into_socket()?, caller, &self.executor);
        Ok(())
    }
}

/// The pending connection to close: the oldest one of the origin with the most. So a flood
/// displaces only itself.
fn oldest_of_largest_origin(origins: &[PeerOrigin]) -> usize {
    let mut counts: HashMap<PeerOrigin, usize> = HashMap::new();
    for origin in origins {
        *counts.entry(network_of(*origin)).or_default() += 1;
    }
    let most = counts.values().copied().max().unwrap_or(0);
    origins
        .iter()
        .position(|origin| counts[&network_of(*origin)] == most)
        .unwrap_or(0)
}

/// An IPv6 host has a whole /64, so its network counts as one origin.
fn network_of(origin: PeerOrigin) -> PeerOrigin {
    origin.map(|from| match from {
        IpAddr::V4(_) => from,
        IpAddr::V6(from) => IpAddr::V6((from.to_bits() & !u128::from(u64::MAX)).into()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flood_displaces_only_itself() {
        let origins = |from: &[&str]| {
            from.iter()
                .map(|from| from.parse().ok())
                .collect::<Vec<PeerOrigin>>()
        };
        assert_eq!(
            oldest_of_largest_origin(&origins(&["10.0.0.7", "10.0.0.9", "10.0.0.9"])),
            1
        );
        assert_eq!(
            oldest_of_largest_origin(&origins(&[
                "10.0.0.7",
                "2001:db8::1",
                "2001:db8::2",
                "10.0.0.9"
            ])),
            1
        );
        assert_eq!(
            oldest_of_largest_origin(&origins(&["10.0.0.7", "10.0.0.8"])),
            0,
            "the first, if all origins are equal"
        );
        assert_eq!(oldest_of_largest_origin(&[None, None]), 0);
    }
}
