//! What arrives over a link.

use std::io;

use raddle_wire::frame::{Decoder, Frame};
use rustix::net::RecvFlags;

use super::LinkSocket;

/// Bytes that are read at a time, if nothing is known of what they are.
const CHUNK: usize = 32 * 1024;

/// What has arrived so far of a frame that is not whole.
pub(crate) struct LinkReader {
    decoder: Decoder,
    chunk: Box<[u8]>,
}

/// How much was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadAmount {
    /// All that was there.
    All,
    /// There may be more.
    Some,
    /// The last: there will be no more.
    Last,
}

impl LinkReader {
    pub(crate) fn new() -> Self {
        Self {
            decoder: Decoder::default(),
            chunk: vec![0; CHUNK].into(),
        }
    }

    /// Reads once, and gives each frame that is whole with it. What makes no sense is [`io::ErrorKind::InvalidData`]; nothing is given after it.
    pub(crate) fn read(
        &mut self,
        socket: &LinkSocket,
        mut each: impl FnMut(Frame) -> io::Result<()>,
    ) -> io::Result<ReadAmount> {
        let is_plain = socket.is_plain();
        let mut heard = Ok(());
        let each = |frame| {
            if heard.is_ok() {
                heard = each(frame);
            }
        };
        let (got, asked) = match self.decoder.room().filter(|_| is_plain) {
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
        heard?;
        Ok(match got {
            Some(0) => ReadAmount::Last,
            // Of what is encrypted, a record is read at a time.
            Some(got) if got == asked || !is_plain => ReadAmount::Some,
            Some(_) | None => ReadAmount::All,
        })
    }
}

/// Reads at most so many bytes to the end of what is in the buffer.
fn receive(socket: &LinkSocket, buffer: &mut Vec<u8>, most: usize) -> io::Result<usize> {
    buffer.reserve(most);
    let spare = &mut buffer.spare_capacity_mut()[..most];
    let ((read, _), _) = rustix::net::recv(socket, spare, RecvFlags::empty())?;
    let (read, before) = (read.len(), buffer.len());
    // SAFETY: the system has written so many bytes to where the buffer ended.
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
