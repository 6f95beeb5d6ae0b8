//! Who comes in: clients with a link, and clients that speak gRPC.

use std::{collections::HashMap, io, net::IpAddr, sync::Arc, time::Duration};

use futures_util::{Stream as Clients, stream::poll_fn};
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

/// How long somebody who has come may take to prove who it is, and to say a first word.
const FIRST_WORD: Duration = Duration::from_secs(10);
/// How many may be at it at a time. Whoever means well is done in no time: if there are more, somebody has to go.
const AT_THE_DOOR: usize = 256;
/// How long nobody is let in after somebody could not be: no descriptor is to be had, and one that ends gives its own back.
const PAUSE: Duration = Duration::from_millis(50);
/// Clients that wait for the gRPC server, which takes them at once.
const WAITING: usize = 16;

/// Lets clients in.
pub(super) struct Acceptor {
    pub(super) links: Arc<LinkServer>,
    pub(super) executor: Arc<Executor>,
    /// Clients at a port have to prove who they are.
    pub(super) tls: Option<TlsAcceptor>,
}

/// Somebody who has not come in yet.
struct PendingConnection {
    from: PeerOrigin,
    meeting: AbortHandle,
}

impl Acceptor {
    /// Opens it. Returns those that speak gRPC; the others get a link.
    pub(super) fn open(
        self,
        listener: Listener,
    ) -> impl Clients<Item = io::Result<GrpcConnection>> {
        let (grpc, mut clients) = mpsc::channel(WAITING);
        // Ends with the process.
        tokio::spawn(Arc::new(self).stand(listener, grpc));
        poll_fn(move |cx| clients.poll_recv(cx))
    }

    async fn stand(self: Arc<Self>, listener: Listener, grpc: Sender<io::Result<GrpcConnection>>) {
        let mut waiting: Vec<PendingConnection> = Vec::new();
        loop {
            let client = match listener.accept().await {
                Ok(client) => client,
                Err(error) => {
                    self.executor.setup.gate.shut_out(&error);
                    if error.kind() != io::ErrorKind::PermissionDenied {
                        sleep(PAUSE).await;
                    }
                    continue;
                }
            };
            let from = client.peer_ip();
            waiting.retain(|one| !one.meeting.is_finished());
            if waiting.len() >= AT_THE_DOOR {
                let origins: Vec<PeerOrigin> = waiting.iter().map(|one| one.from).collect();
                let goes = waiting.remove(who_goes(&origins));
                goes.meeting.abort();
                self.executor
                    .setup
                    .gate
                    .turn_away(&io::ErrorKind::TimedOut.into(), goes.from);
            }
            let (door, grpc) = (Arc::clone(&self), grpc.clone());
            // Ends at the latest when its time is over.
            let meeting = tokio::spawn(async move {
                let met = timeout(FIRST_WORD, door.meet(client, from, grpc)).await;
                if let Err(error) = met.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
                    door.executor.setup.gate.turn_away(&error, from);
                }
            });
            waiting.push(PendingConnection {
                from,
                meeting: meeting.abort_handle(),
            });
        }
    }

    async fn meet(
        &self,
        client: WorkerStream,
        from: PeerOrigin,
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
            .gate
            .admit(peer, from, client.is_local());
        let mut beginning = [0; GREETING.len()];
        client.io().read_exact(&mut beginning).await?;
        if PREFACE.starts_with(&beginning) {
            let mut rest = [0; PREFACE.len() - GREETING.len()];
            client.io().read_exact(&mut rest).await?;
            if !PREFACE.ends_with(&rest) {
                return Err(io::ErrorKind::InvalidData.into());
            }
            let visit = GrpcConnection::new(client, caller, self.links.guests.clock());
            if self.links.guests.admit(visit.visitor()) {
                // Nobody is left to take it when the worker ends.
                let _ = grpc.send(Ok(visit)).await;
            }
            return Ok(());
        }
        if beginning[0] == GREETING[0] {
            // A client of another version hears which this is, and calls by gRPC.
            client.io().write_all(&GREETING).await?;
            client.io().flush().await?;
        }
        if beginning != GREETING {
            return Err(io::ErrorKind::InvalidData.into());
        }
        self.links
            .begin(client.into_socket()?, caller, &self.executor);
        Ok(())
    }
}

/// Who of those at the door has to go: of those from where most have come, the one who has taken longest. So whoever sends a crowd gets in the way of its own.
fn who_goes(origins: &[PeerOrigin]) -> usize {
    let mut many: HashMap<PeerOrigin, usize> = HashMap::new();
    for origin in origins {
        *many.entry(neighbourhood(*origin)).or_default() += 1;
    }
    let most = many.values().copied().max().unwrap_or(0);
    origins
        .iter()
        .position(|origin| many[&neighbourhood(*origin)] == most)
        .unwrap_or(0)
}

/// Whoever has an address of IPv6 has as many as it wants of the same network.
fn neighbourhood(origin: PeerOrigin) -> PeerOrigin {
    origin.map(|from| match from {
        IpAddr::V4(_) => from,
        IpAddr::V6(from) => IpAddr::V6((from.to_bits() & !u128::from(u64::MAX)).into()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_sends_a_crowd_gets_in_the_way_of_its_own() {
        let origins = |from: &[&str]| {
            from.iter()
                .map(|from| from.parse().ok())
                .collect::<Vec<PeerOrigin>>()
        };
        assert_eq!(who_goes(&origins(&["10.0.0.7", "10.0.0.9", "10.0.0.9"])), 1);
        assert_eq!(
            who_goes(&origins(&[
                "10.0.0.7",
                "2001:db8::1",
                "2001:db8::2",
                "10.0.0.9"
            ])),
            1
        );
        assert_eq!(
            who_goes(&origins(&["10.0.0.7", "10.0.0.8"])),
            0,
            "the first, if all are equal"
        );
        assert_eq!(who_goes(&[None, None]), 0);
    }
}
