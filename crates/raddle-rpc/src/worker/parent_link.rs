//! The parent link: a socket pair between a pool and its worker process. It carries the settings to
//! the worker, and reports back; when the pool closes it, the worker exits.

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
use crate::serve::{QUERY_COUNTS, STOP, StartReport};

/// The pool's end.
#[derive(Debug)]
pub(super) struct ParentLink {
    reports: Lines<BufReader<OwnedReadHalf>>,
    requests: OwnedWriteHalf,
}

impl ParentLink {
    /// Returns the pool's end and the worker's.
    pub(super) fn new() -> io::Result<(Self, StdUnixStream)> {
        let (ours, theirs) = StdUnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let (read, write) = UnixStream::from_std(ours)?.into_split();
        Ok((
            Self {
                reports: BufReader::new(read).lines(),
                requests: write,
            },
            theirs,
        ))
    }

    /// Sends a line of JSON.
    pub(super) async fn send(&mut self, what: &impl Serialize) -> io::Result<()> {
        let mut line = serde_json::to_vec(what)?;
        line.push(b'\n');
        self.requests.write_all(&line).await
    }

    /// Requests the worker's call counts.
    pub(super) fn request_counts(&self) {
        self.send_now(&[QUERY_COUNTS]);
    }

    /// Stops the worker.
    pub(super) fn stop(&self, mode: StopMode) {
        let mut request = vec![STOP];
        request.extend(mode.seconds().to_be_bytes());
        self.send_now(&request);
    }

    /// Does not wait for a worker that does not read, or is gone.
    fn send_now(&self, request: &[u8]) {
        let _ = self.requests.try_write(request);
    }

    /// Receives the next report. `None` at the end, or after an invalid report. Cancel-safe.
    pub(super) async fn next_report(&mut self) -> Option<StartReport> {
        let line = self.reports.next_line().await.ok()??;
        serde_json::from_str(&line).ok()
    }
}
