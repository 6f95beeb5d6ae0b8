//! Who comes in: clients with a link, and clients that speak gRPC.

use std::{collections::VecDeque, io, sync::Arc, time::Duration};

use futures_util::{Stream as Clients, stream::poll_fn};
use raddle_wire::frame::GREETING;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::mpsc::{self, Sender},
    task::AbortHandle,
    time::timeout,
};
use tokio_rustls::TlsAcceptor;

use super::{executor::Executor, gate::Gate, link::Links, listener::Listener};
use crate::connection::Stream;

/// How long somebody who has come may take to prove who it is, and to say a first word.
const FIRST_WORD: Duration = Duration::from_secs(10);
/// How many may be at it at a time. Whoever means well is done in no time: if there are more, the one who has taken longest has to go.
const AT_THE_DOOR: usize = 256;
/// Clients that wait for the gRPC server, which takes them at once.
const WAITING: usize = 16;

/// Lets clients in.
pub(super) struct Door {
    pub(super) links: Arc<Links>,
    pub(super) executor: Arc<Executor>,
    pub(super) gate: Arc<Gate>,
    /// Clients at a port have to prove who they are.
    pub(super) tls: Option<TlsAcceptor>,
}

impl Door {
    /// Opens it. Returns those that speak gRPC; the others get a link.
    pub(super) fn open(self, listener: Listener) -> impl Clients<Item = io::Result<Stream>> {
        let (grpc, mut clients) = mpsc::channel(WAITING);
        // Ends with the process.
        tokio::spawn(Arc::new(self).stand(listener, grpc));
        poll_fn(move |cx| clients.poll_recv(cx))
    }

    async fn stand(self: Arc<Self>, listener: Listener, grpc: Sender<io::Result<Stream>>) {
        let mut at_the_door: VecDeque<AbortHandle> = VecDeque::new();
        loop {
            let client = listener.accept().await;
            at_the_door.retain(|meeting| !meeting.is_finished());
            while at_the_door.len() >= AT_THE_DOOR {
                at_the_door.pop_front().iter().for_each(AbortHandle::abort);
                self.gate.turn_away(&io::ErrorKind::TimedOut.into());
            }
            let (door, grpc) = (Arc::clone(&self), grpc.clone());
            // Ends at the latest when its time is over.
            let meeting = tokio::spawn(async move {
                let met = timeout(FIRST_WORD, door.meet(client, grpc)).await;
                if let Err(error) = met.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
                    door.gate.turn_away(&error);
                }
            });
            at_the_door.push_back(meeting.abort_handle());
        }
    }

    async fn meet(&self, client: Stream, grpc: Sender<io::Result<Stream>>) -> io::Result<()> {
        let mut client = match &self.tls {
            Some(acceptor) => client.accepted(acceptor).await?,
            None => client,
        };
        if !client.wants_link().await? {
            // Nobody is left to take it when the worker ends.
            let _ = grpc.send(Ok(client)).await;
            return Ok(());
        }
        let mut greeting = [0; GREETING.len()];
        client.read_exact(&mut greeting).await?;
        // Of another version: it hears which this is, and calls by gRPC.
        client.write_all(&GREETING).await?;
        client.flush().await?;
        if greeting == GREETING {
            let peer = client.peer().map_err(io::Error::other)?;
            self.links.begin(client.into_socket()?, peer, &self.executor);
        }
        Ok(())
    }
}
