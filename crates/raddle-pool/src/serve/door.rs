//! Who comes in: clients with a link, and clients that speak gRPC.

use std::{io, sync::Arc, time::Duration};

use futures_util::{Stream as Clients, stream::poll_fn};
use raddle_wire::frame::GREETING;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::mpsc::{self, Sender},
    time::timeout,
};

use super::{executor::Executor, link::Links, listener::Listener};
use crate::connection::Stream;

/// How long somebody who has come may take to say a first word.
const FIRST_WORD: Duration = Duration::from_secs(10);
/// Clients that wait for the gRPC server, which takes them at once.
const WAITING: usize = 16;

/// Lets clients in. Returns those that speak gRPC; the others get a link.
pub(super) fn open(
    listener: Listener,
    links: Arc<Links>,
    executor: Arc<Executor>,
) -> impl Clients<Item = io::Result<Stream>> {
    let (grpc, mut clients) = mpsc::channel(WAITING);
    // Ends with the process.
    tokio::spawn(async move {
        loop {
            let client = listener.accept().await;
            let (grpc, links, executor) = (grpc.clone(), Arc::clone(&links), Arc::clone(&executor));
            // Ends at the latest when its time is over.
            tokio::spawn(timeout(FIRST_WORD, async move { meet(client, grpc, &links, &executor).await }));
        }
    });
    poll_fn(move |cx| clients.poll_recv(cx))
}

async fn meet(
    mut client: Stream,
    grpc: Sender<io::Result<Stream>>,
    links: &Links,
    executor: &Arc<Executor>,
) -> io::Result<()> {
    if client.peek().await? != Some(GREETING[0]) {
        // Nobody is left to take it when the worker ends.
        let _ = grpc.send(Ok(client)).await;
        return Ok(());
    }
    let mut greeting = [0; GREETING.len()];
    client.read_exact(&mut greeting).await?;
    // Of another version: it hears which this is, and calls by gRPC.
    client.write_all(&GREETING).await?;
    if greeting == GREETING {
        links.begin(client.into_socket()?, executor);
    }
    Ok(())
}
