//! The framing of a link: pure conversion between bytes and frames. It must not interpret the
//! contents.
//!
//! A link is a connection that begins with [`GREETING`] from both sides, where gRPC would begin
//! with its own preface. Frames follow: a header of three little-endian numbers of four bytes, a
//! head, and a part of a body.
//!
//! ```text
//! | bytes of the head | bytes of the body that follow here | bytes of the whole body | head … | body … |
//! ```
//!
//! The head is a `Request` to the worker or an `Answer` from it. The body is passed on
//! uninterpreted: arguments, a result, an item or an error. A body that does not fit into one frame
//! continues in frames without a head. Other messages may come in between, so that a large body
//! does not delay them, but only one such body is in progress at a time.

use bytes::Bytes;
use prost::Message;

/// Preface of both sides of a link. The last byte is the version.
pub const GREETING: [u8; 8] = *b"raddle\0\x01";
/// Maximum size of a head.
pub const MAX_HEAD: usize = 1024 * 1024;
/// Maximum size of a body. Larger data belongs in a file.
pub const MAX_BODY: usize = 255 * 1024 * 1024;
/// Larger bodies are sent in pieces of this size.
pub const PIECE: usize = 256 * 1024;
/// Size of a frame header in bytes.
const HEADER_LEN: usize = 12;
/// Buffer capacity that is kept between messages. A link does not keep the memory of a larger
/// message.
const MAX_IDLE_CAPACITY: usize = 128 * 1024;
/// Memory that is allocated for an announced body before any of it has arrived. After that, at most
/// twice the received size is allocated, so a peer that announces much and sends little holds
/// little memory. Most bodies that come in pieces fit into this.
const MAX_PREALLOCATION: usize = 1024 * 1024;

/// One message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The encoded `Request` or `Answer`.
    pub head: Bytes,
    /// The body of the message.
    pub body: Bytes,
}

/// Why a frame is invalid. No version of Raddle sends such a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// A size exceeds its maximum.
    #[error("a frame is too large")]
    TooLarge,
    /// A piece contradicts the announced body, or continues a body that was never begun.
    #[error("a frame does not fit those before it")]
    Unfit,
}

/// Appends a message that is sent in one frame.
pub fn put(buffer: &mut Vec<u8>, head: &impl Message, body: &[u8]) {
    put_header(buffer, head.encoded_len(), body.len(), body.len());
    head.encode_raw(buffer);
    buffer.extend_from_slice(body);
}

/// Appends the header of a piece of a body. The first piece has the head of its message, the others
/// an empty one.
pub fn put_beginning(buffer: &mut Vec<u8>, head: &[u8], piece: usize, whole: usize) {
    put_header(buffer, head.len(), piece, whole);
    buffer.extend_from_slice(head);
}

fn put_header(buffer: &mut Vec<u8>, head: usize, piece: usize, whole: usize) {
    for length in [head, piece, whole] {
        // The sender has checked the limits above, which are far below `u32::MAX`.
        buffer.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes());
    }
}

/// Decodes frames from bytes, however they are split.
#[derive(Debug, Default)]
pub struct Decoder {
    /// Received bytes of an incomplete frame.
    buffer: Vec<u8>,
    /// The body in progress, and its head.
    partial: Option<PartialBody>,
}

#[derive(Debug)]
struct PartialBody {
    head: Bytes,
    body: Vec<u8>,
    whole: usize,
    /// Bytes of the current piece that have not arrived yet.
    missing: usize,
}

#[derive(Clone, Copy)]
struct Header {
    head: usize,
    piece: usize,
    whole: usize,
}

impl Decoder {
    /// Decodes received bytes, and calls `each` for each complete frame.
    pub fn take(
        &mut self,
        mut bytes: &[u8],
        mut each: impl FnMut(Frame),
    ) -> Result<(), FrameError> {
        while !bytes.is_empty() {
            if self.buffer.is_empty() {
                bytes = self.read(bytes, &mut each)?;
                self.buffer.extend_from_slice(bytes);
                return Ok(());
            }
            // Take only what completes the buffered frame: the rest is decoded in place.
            let missing = self.missing()?.clamp(1, bytes.len());
            self.buffer.extend_from_slice(&bytes[..missing]);
            bytes = &bytes[missing..];
            let buffer = std::mem::take(&mut self.buffer);
            let left = self.read(&buffer, &mut each)?.len();
            self.buffer = buffer;
            self.buffer.drain(..self.buffer.len() - left);
            if self.buffer.is_empty() {
                self.buffer.shrink_to(MAX_IDLE_CAPACITY);
            }
        }
        Ok(())
    }

    /// Returns the buffer for the next bytes of a large body, and how many it takes. Reading into
    /// it directly saves a copy.
    pub fn room(&mut self) -> Option<(&mut Vec<u8>, usize)> {
        let partial = self
            .partial
            .as_mut()
            .filter(|partial| partial.missing > 0)?;
        Some((&mut partial.body, partial.missing))
    }

    /// Reports how many bytes were written to the buffer of [`room`](Self::room).
    pub fn filled(&mut self, bytes: usize, mut each: impl FnMut(Frame)) {
        if let Some(partial) = &mut self.partial {
            partial.missing = partial.missing.saturating_sub(bytes);
        }
        self.finish_body(&mut each);
    }

    /// Decodes frames from the beginning of `bytes`, and returns the rest.
    fn read<'a>(
        &mut self,
        mut bytes: &'a [u8],
        each: &mut impl FnMut(Frame),
    ) -> Result<&'a [u8], FrameError> {
        loop {
            if let Some(partial) = self.partial.as_mut().filter(|partial| partial.missing > 0) {
                let (piece, rest) = bytes.split_at(partial.missing.min(bytes.len()));
                partial.body.extend_from_slice(piece);
                partial.missing -= piece.len();
                bytes = rest;
                self.finish_body(each);
            }
            let Some((header, after)) = Header::read(bytes)? else {
                return Ok(bytes);
            };
            if header.head == 0 {
                bytes = after;
                self.continue_body(header)?;
                continue;
            }
            let Some((head, after)) = after.split_at_checked(header.head) else {
                return Ok(bytes);
            };
            if header.piece < header.whole {
                bytes = after;
                self.begin_body(header, head)?;
                continue;
            }
            let Some((body, after)) = after.split_at_checked(header.piece) else {
                return Ok(bytes);
            };
            each(Frame {
                head: Bytes::copy_from_slice(head),
                body: Bytes::copy_from_slice(body),
            });
            bytes = after;
        }
    }

    fn begin_body(&mut self, header: Header, head: &[u8]) -> Result<(), FrameError> {
        if self.partial.is_some() {
            return Err(FrameError::Unfit);
        }
        let body = Vec::with_capacity(header.whole.min(MAX_PREALLOCATION));
        let head = Bytes::copy_from_slice(head);
        let mut partial = PartialBody {
            head,
            body,
            whole: header.whole,
            missing: 0,
        };
        partial.reserve_piece(header.piece);
        self.partial = Some(partial);
        Ok(())
    }

    fn continue_body(&mut self, header: Header) -> Result<(), FrameError> {
        let partial = self.partial.as_mut().ok_or(FrameError::Unfit)?;
        if header.whole != partial.whole
            || header.piece == 0
            || header.piece > partial.whole - partial.body.len()
        {
            return Err(FrameError::Unfit);
        }
        partial.reserve_piece(header.piece);
        Ok(())
    }

    fn finish_body(&mut self, each: &mut impl FnMut(Frame)) {
        if let Some(PartialBody { head, body, .. }) = self
            .partial
            .take_if(|partial| partial.body.len() == partial.whole)
        {
            each(Frame {
                head,
                body: body.into(),
            });
        }
    }

    /// Returns the minimum number of bytes that the buffered frame still needs.
    fn missing(&self) -> Result<usize, FrameError> {
        let whole = match Header::read(&self.buffer)? {
            None => HEADER_LEN,
            Some((Header { head: 0, .. }, _)) => HEADER_LEN,
            Some((Header { head, piece, whole }, _)) if piece < whole => HEADER_LEN + head,
            Some((Header { head, piece, .. }, _)) => HEADER_LEN + head + piece,
        };
        Ok(whole.saturating_sub(self.buffer.len()))
    }
}

impl PartialBody {
    /// Reserves memory for a piece. The total size is the sender's claim, so it is not allocated
    /// before the data arrives.
    fn reserve_piece(&mut self, piece: usize) {
        let needed = self.body.len() + piece;
        if needed > self.body.capacity() {
            let next = needed.max(2 * self.body.capacity()).min(self.whole);
            self.body.reserve_exact(next - self.body.len());
        }
        self.missing = piece;
    }
}

impl Header {
    /// Reads a complete header, and returns it with the bytes after it.
    fn read(bytes: &[u8]) -> Result<Option<(Self, &[u8])>, FrameError> {
        let Some((header, after)) = bytes.split_first_chunk::<HEADER_LEN>() else {
            return Ok(None);
        };
        let number = |at: usize| {
            u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
                as usize
        };
        let header = Self {
            head: number(0),
            piece: number(4),
            whole: number(8),
        };
        if header.head > MAX_HEAD || header.whole > MAX_BODY || header.piece > PIECE {
            return Err(FrameError::TooLarge);
        }
        if header.piece > header.whole {
            return Err(FrameError::Unfit);
        }
        Ok(Some((header, after)))
    }
}

#[cfg(any(test, feature = "probe"))]
#[path = "frame/tests/probe.rs"]
pub mod probe;
#[cfg(test)]
mod tests;
