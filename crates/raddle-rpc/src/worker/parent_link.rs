//! The socket that a worker is held by. What it is to be goes there, and where it serves comes back; after that it is asked what it has done.
//! When this end is closed, the worker ends.

use std::{io, os::unix::net::UnixStream as StdUnixStream};

use serde::Serialize;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
};

use super::StopMode;
use crate::serve::{ASKED, STOP, StartReport};

/// One end of it.
#[derive(Debug)]
pub(super) struct ParentLink {
    heard: Lines<BufReader<OwnedReadHalf>>,
    told: OwnedWriteHalf,
}

impl ParentLink {
    /// This end, and the other.
    pub(super) fn new() -> io::Result<(Self, StdUnixStream)> {
        let (ours, theirs) = StdUnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let (heard, told) = UnixStream::from_std(ours)?.into_split();
        Ok((
            Self {
                heard: BufReader::new(heard).lines(),
                told,
            },
            theirs,
        ))
    }

    /// Says something, a line.
    pub(super) async fn tell(&mut self, what: &impl Serialize) -> io::Result<()> {
        let mut line = serde_json::to_vec(what)?;
        line.push(b'\n');
        self.told.write_all(&line).await
    }

    /// Asks what the worker has done.
    pub(super) fn ask(&self) {
        self.order(&[ASKED]);
    }

    /// Has the worker stop.
    pub(super) fn stop(&self, patience: StopMode) {
        let mut order = vec![STOP];
        order.extend(patience.seconds().to_be_bytes());
        self.order(&order);
    }

    /// A worker that does not listen, or is gone, is not waited for.
    fn order(&self, order: &[u8]) {
        let _ = self.told.try_write(order);
    }

    /// The next thing that the worker says. `None` if it will say nothing more, or nothing that makes sense. Can be dropped while it waits
    /// without losing anything.
    pub(super) async fn hear(&mut self) -> Option<StartReport> {
        let line = self.heard.next_line().await.ok()??;
        serde_json::from_str(&line).ok()
    }
}
