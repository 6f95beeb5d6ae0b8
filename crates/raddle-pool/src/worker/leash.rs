//! The socket that a worker is held by. What it is to be goes there, and where it serves comes back; after that it is asked what it has done.
//! When this end is closed, the worker ends.

use std::{io, os::unix::net::UnixStream as StdUnixStream};

use serde::Serialize;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
};

use super::Patience;
use crate::serve::{ASKED, Report, STOP};

/// The longest line that a worker says. It is this same program; but what its routines do is theirs.
const LONGEST: usize = 64 * 1024;

/// One end of it.
#[derive(Debug)]
pub(super) struct Leash {
    heard: BufReader<OwnedReadHalf>,
    told: OwnedWriteHalf,
    /// What was heard of a line that is not whole.
    line: Vec<u8>,
}

impl Leash {
    /// This end, and the other.
    pub(super) fn new() -> io::Result<(Self, StdUnixStream)> {
        let (ours, theirs) = StdUnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let (heard, told) = UnixStream::from_std(ours)?.into_split();
        Ok((Self { heard: BufReader::new(heard), told, line: Vec::new() }, theirs))
    }

    /// Says something, a line.
    pub(super) async fn tell(&mut self, what: &impl Serialize) -> io::Result<()> {
        let mut line = serde_json::to_vec(what)?;
        line.push(b'\n');
        self.told.write_all(&line).await
    }

    /// Asks what the worker has done. One that does not listen is not waited for.
    pub(super) fn ask(&self) {
        let _ = self.told.try_write(&[ASKED]);
    }

    /// Has the worker stop. It listens, whatever its routines do.
    pub(super) async fn stop(&mut self, patience: Patience) {
        let mut word = vec![STOP];
        word.extend(patience.seconds().to_be_bytes());
        // One that is gone needs no word.
        let _ = self.told.write_all(&word).await;
    }

    /// The next thing that the worker says. `None` if it will say nothing more, or nothing that makes sense. Can be dropped while it waits
    /// without losing anything.
    pub(super) async fn hear(&mut self) -> Option<Report> {
        loop {
            let arrived = self.heard.fill_buf().await.ok()?;
            let end = arrived.iter().position(|byte| *byte == b'\n');
            let taken = end.map_or(arrived.len(), |end| end + 1);
            if taken == 0 || self.line.len() + taken > LONGEST {
                return None;
            }
            self.line.extend_from_slice(&arrived[..taken]);
            self.heard.consume(taken);
            if end.is_some() {
                let report = serde_json::from_slice(&self.line).ok();
                self.line.clear();
                return report;
            }
        }
    }
}
