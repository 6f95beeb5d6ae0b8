//! Reading frames from a link's socket.

use std::io;

use raddle_wire::frame::{Decoder, Frame};
use rustix::net::RecvFlags;

use super::LinkSocket;

/// Bytes per read, unless the decoder knows how much of a body is missing.
const CHUNK: usize = 32 * 1024;

/// Reads frames from a socket and keeps what has arrived of an incomplete one.
pub(crate) struct LinkReader {
    decoder: Decoder,
    chunk: Box<[u8]>,
}

/// How much one `read` has read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadAmount {
    /// All that had arrived.
    All,
    /// Part of it: there may be more.
    Some,
    /// The end of the stream.
    Last,
}

impl LinkReader {
    pub(crate) fn new() -> Self {
        Self {
            decoder: Decoder::default(),
            chunk: vec![0; CHUNK].into(),
        }
    }

    /// Reads once, and passes each complete frame to `each`. A malformed frame is
    /// [`io::ErrorKind::InvalidData`]; no frame is passed after an error.
    pub(crate) fn read(
        &mut self,
        socket: &LinkSocket,
        mut each: impl FnMut(Frame) -> io::Result<()>,
    ) -> io::Result<ReadAmount> {
        let is_plain = socket.is_plain();
        let mut result = Ok(());
        let each = |frame| {
            if result.is_ok() {
                result = each(frame);
            }
        };
        let (got, wanted) = match self.decoder.room().filter(|_| is_plain) {
            Some((body, most)) => {
                let got = would_block(receive(socket, body, most))?;
                self.decoder.filled(got.unwrap_or(0), each);
                (got, most)
            }
            None => {
                let got = would_block(socket.read(&mut self.chunk))?;
                let arrived = &self.chunk[..got.unwrap_or(0)];
                let decoded = self.decoder.take(arrived, each);
                decoded.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
                (got, CHUNK)
            }
        };
        result?;
        Ok(match got {
            Some(0) => ReadAmount::Last,
            // TLS decrypts one record per read, so more may be buffered.
            Some(got) if got == wanted || !is_plain => ReadAmount::Some,
            Some(_) | None => ReadAmount::All,
        })
    }
}

/// Appends at most `most` bytes to the buffer.
fn receive(socket: &LinkSocket, buffer: &mut Vec<u8>, most: usize) -> io::Result<usize> {
    buffer.reserve(most);
    let spare = &mut buffer.spare_capacity_mut()[..most];
    let ((read, _), _) = rustix::net::recv(socket, spare, RecvFlags::empty())?;
    let (read, before) = (read.len(), buffer.len());
    // SAFETY: `recv` has initialised `read` bytes at the end of the buffer.
    unsafe { buffer.set_len(before + read) };
    Ok(read)
}

fn would_block(read: io::Result<usize>) -> io::Result<Option<usize>> {
    match read {
        Ok(read) => Ok(Some(read)),
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
            ) =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}
