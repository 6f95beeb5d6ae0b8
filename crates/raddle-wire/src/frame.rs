//! How a link is cut into messages: pure, from bytes to frames and back. What is in them is for others to read.
//!
//! A link is a connection that begins with [`GREETING`], from both sides, where gRPC would begin with its own. Then come frames: a header of
//! three little-endian numbers of four bytes, a head, and some of a body.
//!
//! ```text
//! | bytes of the head | bytes of the body that follow here | bytes of the whole body | head … | body … |
//! ```
//!
//! The head is a `Request` to the worker, an `Answer` from it. The body is what is passed on unread: arguments, a result, an item, an error. A
//! body that does not follow whole is gone on with by frames that have no head. Others may come in between, so that a large body does not hold
//! them up, but only one body is under way at a time.

use bytes::Bytes;
use prost::Message;

/// What both sides of a link begin with. The last byte is its version.
pub const GREETING: [u8; 8] = *b"raddle\0\x01";
/// The largest head.
pub const MAX_HEAD: usize = 1024 * 1024;
/// The largest body. What is larger belongs into a file.
pub const MAX_BODY: usize = 255 * 1024 * 1024;
/// A body that is larger is sent in pieces of this size.
pub const PIECE: usize = 256 * 1024;
/// The bytes before a head.
const HEADER: usize = 12;
/// Memory that is kept for what is to come. A link that has once had a larger message does not keep what that took.
const KEPT: usize = 128 * 1024;
/// Of a body that is announced, so much memory is taken before any of it has come, and then at most twice as much as has: whoever announces much and
/// sends little holds little. Most bodies that come in pieces fit in at once.
const AHEAD: usize = 1024 * 1024;

/// One message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// What it is.
    pub head: Bytes,
    /// What comes with it.
    pub body: Bytes,
}

/// No other version of Raddle sends such a thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// Larger than any.
    #[error("a frame is too large")]
    TooLarge,
    /// A body of which there is more than was said, or less, or none.
    #[error("a frame does not fit those before it")]
    Unfit,
}

/// Writes a message that is sent in one piece.
pub fn put(buffer: &mut Vec<u8>, head: &impl Message, body: &[u8]) {
    put_header(buffer, head.encoded_len(), body.len(), body.len());
    head.encode_raw(buffer);
    buffer.extend_from_slice(body);
}

/// Writes what comes before a piece of a body: with the head of its message before the first, and without one before the others.
pub fn put_beginning(buffer: &mut Vec<u8>, head: &[u8], piece: usize, whole: usize) {
    put_header(buffer, head.len(), piece, whole);
    buffer.extend_from_slice(head);
}

fn put_header(buffer: &mut Vec<u8>, head: usize, piece: usize, whole: usize) {
    for length in [head, piece, whole] {
        // Whoever sends has looked at the bounds above, which are far below this.
        buffer.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes());
    }
}

/// Makes frames of bytes, however they arrive.
#[derive(Debug, Default)]
pub struct Decoder {
    /// What has arrived and is not part of a whole frame.
    buffer: Vec<u8>,
    /// The body that is under way, and what it belongs to.
    large: Option<Large>,
}

#[derive(Debug)]
struct Large {
    head: Bytes,
    body: Vec<u8>,
    whole: usize,
    /// Bytes that are still to come of this piece.
    missing: usize,
}

#[derive(Clone, Copy)]
struct Header {
    head: usize,
    piece: usize,
    whole: usize,
}

impl Decoder {
    /// Takes what has arrived, and gives each frame that is whole with it.
    pub fn take(&mut self, mut bytes: &[u8], mut each: impl FnMut(Frame)) -> Result<(), FrameError> {
        while !bytes.is_empty() {
            if self.buffer.is_empty() {
                bytes = self.read(bytes, &mut each)?;
                self.buffer.extend_from_slice(bytes);
                return Ok(());
            }
            // Only as much as completes what has begun: the rest is read where it is.
            let missing = self.missing()?.clamp(1, bytes.len());
            self.buffer.extend_from_slice(&bytes[..missing]);
            bytes = &bytes[missing..];
            let buffer = std::mem::take(&mut self.buffer);
            let left = self.read(&buffer, &mut each)?.len();
            self.buffer = buffer;
            self.buffer.drain(..self.buffer.len() - left);
            if self.buffer.is_empty() {
                self.buffer.shrink_to(KEPT);
            }
        }
        Ok(())
    }

    /// Where bytes that are next to arrive belong, and how many at most, if it is known: whoever puts them there has saved a copy.
    pub fn room(&mut self) -> Option<(&mut Vec<u8>, usize)> {
        let large = self.large.as_mut().filter(|large| large.missing > 0)?;
        Some((&mut large.body, large.missing))
    }

    /// Is told how many were put there.
    pub fn filled(&mut self, bytes: usize, mut each: impl FnMut(Frame)) {
        if let Some(large) = &mut self.large {
            large.missing = large.missing.saturating_sub(bytes);
        }
        self.end_large(&mut each);
    }

    /// Reads frames off the beginning, and returns what is left.
    fn read<'a>(&mut self, mut bytes: &'a [u8], each: &mut impl FnMut(Frame)) -> Result<&'a [u8], FrameError> {
        loop {
            if let Some(large) = self.large.as_mut().filter(|large| large.missing > 0) {
                let (piece, rest) = bytes.split_at(large.missing.min(bytes.len()));
                large.body.extend_from_slice(piece);
                large.missing -= piece.len();
                bytes = rest;
                self.end_large(each);
            }
            let Some((header, after)) = Header::read(bytes)? else { return Ok(bytes) };
            if header.head == 0 {
                bytes = after;
                self.go_on(header)?;
                continue;
            }
            let Some((head, after)) = after.split_at_checked(header.head) else { return Ok(bytes) };
            if header.piece < header.whole {
                bytes = after;
                self.begin(header, head)?;
                continue;
            }
            let Some((body, after)) = after.split_at_checked(header.piece) else { return Ok(bytes) };
            each(Frame { head: Bytes::copy_from_slice(head), body: Bytes::copy_from_slice(body) });
            bytes = after;
        }
    }

    fn begin(&mut self, header: Header, head: &[u8]) -> Result<(), FrameError> {
        if self.large.is_some() {
            return Err(FrameError::Unfit);
        }
        let body = Vec::with_capacity(header.whole.min(AHEAD));
        let head = Bytes::copy_from_slice(head);
        let mut large = Large { head, body, whole: header.whole, missing: 0 };
        large.expect(header.piece);
        self.large = Some(large);
        Ok(())
    }

    fn go_on(&mut self, header: Header) -> Result<(), FrameError> {
        let large = self.large.as_mut().ok_or(FrameError::Unfit)?;
        if header.whole != large.whole || header.piece == 0 || header.piece > large.whole - large.body.len() {
            return Err(FrameError::Unfit);
        }
        large.expect(header.piece);
        Ok(())
    }

    fn end_large(&mut self, each: &mut impl FnMut(Frame)) {
        if let Some(Large { head, body, .. }) = self.large.take_if(|large| large.body.len() == large.whole) {
            each(Frame { head, body: body.into() });
        }
    }

    /// How many bytes the frame at the beginning of the buffer needs, at least.
    fn missing(&self) -> Result<usize, FrameError> {
        let whole = match Header::read(&self.buffer)? {
            None => HEADER,
            Some((Header { head: 0, .. }, _)) => HEADER,
            Some((Header { head, piece, whole }, _)) if piece < whole => HEADER + head,
            Some((Header { head, piece, .. }, _)) => HEADER + head + piece,
        };
        Ok(whole.saturating_sub(self.buffer.len()))
    }
}

impl Large {
    /// Makes room for a piece. It is the sender who says how much there will be in all, so that is not believed before it comes.
    fn expect(&mut self, piece: usize) {
        let needed = self.body.len() + piece;
        if needed > self.body.capacity() {
            let next = needed.max(2 * self.body.capacity()).min(self.whole);
            self.body.reserve_exact(next - self.body.len());
        }
        self.missing = piece;
    }
}

impl Header {
    /// The header at the beginning, if it is whole, and what comes after it.
    fn read(bytes: &[u8]) -> Result<Option<(Self, &[u8])>, FrameError> {
        let Some((header, after)) = bytes.split_first_chunk::<HEADER>() else { return Ok(None) };
        let number =
            |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]) as usize;
        let header = Self { head: number(0), piece: number(4), whole: number(8) };
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
