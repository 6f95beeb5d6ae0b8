//! The frame codec of Raddle's private connections: worker and runner, runner and fork server, container supervisor and process 1, remote broker.
//!
//! A frame is a length (four bytes, little-endian) and a body of that length: one serde value in MessagePack, with field names. Names, because an enum with
//! an inner tag cannot be told from a tuple otherwise. File descriptors travel beside a frame (`SCM_RIGHTS`), and are no concern of the codec.
//!
//! Each side reads the other as hostile: a length has a maximum, nesting has a maximum, memory grows with the bytes that have arrived and not with the
//! length that is announced. A connection on which [`Decoder`] has returned an error is of no use any more.
//!
//! ```
//! use raddle_core::frame::{Decoder, encode};
//!
//! let mut decoder = Decoder::new(1024);
//! decoder.push(&encode(&("started", 42)));
//! let (event, pid): (String, u32) = decoder.next().unwrap().unwrap();
//! assert_eq!((event.as_str(), pid), ("started", 42));
//! assert!(decoder.next::<u32>().unwrap().is_none());
//! ```

use serde::{Serialize, de::DeserializeOwned};

/// The size of the length before each body.
pub const PREFIX: usize = 4;
/// Arguments and metadata are JSON, which is nested up to 128 deep when it is read from the store.
const MAX_DEPTH: usize = 256;
/// A decoder that holds less keeps no larger buffer.
const KEPT: usize = 64 * 1024;

/// Why a frame cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The announced body is longer than the reader takes.
    #[error("a frame of {length} bytes is longer than the {max} that are taken")]
    TooLong {
        /// The announced length.
        length: usize,
        /// The maximum of the [`Decoder`].
        max: usize,
    },
    /// The body is not what the reader expects.
    #[error("unreadable structure in a frame: {0}")]
    Unreadable(#[from] rmp_serde::decode::Error),
}

/// Returns the frame of a value. The sender compares its length with the maximum of the reader where the value is not its own.
pub fn encode(value: &impl Serialize) -> Vec<u8> {
    let mut frame = Vec::new();
    encode_into(&mut frame, value);
    frame
}

/// Appends the frame of a value.
pub fn encode_into(out: &mut Vec<u8>, value: &impl Serialize) {
    let start = out.len();
    out.extend([0; PREFIX]);
    rmp_serde::encode::write_named(out, value).expect("a structure of ours is writable to memory");
    // A longer body is refused by every reader.
    let length = u32::try_from(out.len() - start - PREFIX).unwrap_or(u32::MAX);
    out[start..start + PREFIX].copy_from_slice(&length.to_le_bytes());
}

/// Takes bytes as they arrive, and returns the values of whole frames.
#[derive(Debug)]
pub struct Decoder {
    buffer: Vec<u8>,
    /// How much of the buffer has been read.
    start: usize,
    max: usize,
}

impl Decoder {
    /// A decoder of frames whose bodies have at most `max` bytes.
    pub const fn new(max: usize) -> Self {
        Self { buffer: Vec::new(), start: 0, max }
    }

    /// Appends bytes that have arrived.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The buffer, for a reader that appends to it in place.
    pub fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.buffer
    }

    /// Whether no frame has begun.
    pub fn is_empty(&self) -> bool {
        self.start == self.buffer.len()
    }

    /// How many bytes of the frame that has begun are missing, as far as its length is known.
    pub fn missing(&self) -> Result<Option<usize>, Error> {
        let rest = &self.buffer[self.start..];
        let Some(prefix) = rest.first_chunk() else { return Ok(None) };
        let length = u32::from_le_bytes(*prefix) as usize;
        if length > self.max {
            return Err(Error::TooLong { length, max: self.max });
        }
        Ok(Some((PREFIX + length).saturating_sub(rest.len())))
    }

    /// Reads the next frame; `None` until it is whole.
    #[expect(
        clippy::should_implement_trait,
        reason = "each frame may be of another type, and more may come after `None`"
    )]
    pub fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, Error> {
        if self.missing()? != Some(0) {
            self.buffer.drain(..self.start);
            self.start = 0;
            if self.buffer.len() < KEPT {
                self.buffer.shrink_to(KEPT);
            }
            return Ok(None);
        }
        let (prefix, rest) = self.buffer[self.start..].split_first_chunk().expect("a whole frame has a length");
        let body = &rest[..u32::from_le_bytes(*prefix) as usize];
        self.start += PREFIX + body.len();
        let mut reader = rmp_serde::Deserializer::from_read_ref(body);
        reader.set_max_depth(MAX_DEPTH);
        Ok(Some(T::deserialize(&mut reader)?))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Exit, Usage};

    #[test]
    fn frames_arrive_however_they_are_cut() {
        let sent = [Exit::Code { code: 3 }, Exit::Timeout, Exit::NotFound { message: "command not found: x".into() }];
        let wire: Vec<u8> = sent.iter().flat_map(encode).collect();
        for piece in [1, 7, wire.len()] {
            let (mut decoder, mut read) = (Decoder::new(1024), Vec::new());
            for bytes in wire.chunks(piece) {
                decoder.push(bytes);
                while let Some(exit) = decoder.next::<Exit>().unwrap() {
                    read.push(exit);
                }
            }
            assert_eq!(read, sent, "{piece}");
            assert!(decoder.is_empty());
        }
    }

    #[test]
    fn every_exit_survives_the_wire() {
        use crate::limits::LimitKind::MaxProcs;
        let message = String::from("m");
        let exits = [
            Exit::Signal { signal: 9 },
            Exit::OutOfMemory,
            Exit::Limit { limit: MaxProcs },
            Exit::NotExecutable { message: message.clone() },
            Exit::SpawnFailed { message: message.clone() },
            Exit::Lost { message },
            Exit::Lapsed,
            Exit::Cancelled,
            Exit::Killed,
        ];
        for exit in exits {
            let mut decoder = Decoder::new(1024);
            decoder.push(&encode(&exit));
            assert_eq!(decoder.next::<Exit>().unwrap(), Some(exit));
        }
    }

    #[test]
    fn a_long_frame_is_refused_by_its_length() {
        let mut decoder = Decoder::new(16);
        decoder.push(&[17, 0, 0, 0]);
        assert!(matches!(decoder.next::<String>(), Err(Error::TooLong { length: 17, max: 16 })));
        let mut decoder = Decoder::new(16);
        decoder.push(&[16, 0, 0, 0, 1]);
        assert_eq!(decoder.missing().unwrap(), Some(15));
        assert!(matches!(decoder.next::<String>(), Ok(None)));
        let mut decoder = Decoder::new(usize::MAX);
        decoder.push(&[0xff; 5]);
        assert!(matches!(decoder.next::<String>(), Ok(None)) && decoder.buffer().capacity() < 1024);
    }

    #[test]
    fn a_large_frame_leaves_no_large_buffer_behind() {
        let mut decoder = Decoder::new(usize::MAX);
        decoder.push(&encode(&"x".repeat(16 * KEPT)));
        // The first byte of the next frame.
        decoder.push(&[7]);
        assert!(decoder.next::<String>().unwrap().is_some() && decoder.next::<String>().unwrap().is_none());
        assert!(!decoder.is_empty() && decoder.buffer().capacity() <= KEPT);
        decoder.push(&encode(&"y".repeat(7 - 1))[1..]);
        assert_eq!(decoder.next::<String>().unwrap().as_deref(), Some("yyyyyy"));
    }

    #[test]
    fn what_is_nested_too_deep_is_refused() {
        // Arrays of one element each.
        let mut decoder = Decoder::new(usize::MAX);
        decoder.push(&100_000u32.to_le_bytes());
        decoder.push(&vec![0x91; 100_000]);
        assert!(decoder.next::<serde_json::Value>().is_err());
    }

    proptest! {
        #[test]
        fn no_bytes_make_a_reader_panic(bytes: Vec<u8>, cut in 0usize..64) {
            let body = encode(&(&bytes, 1u8));
            for input in [&bytes[..], &body[..cut.min(body.len())], &[&(bytes.len() as u32).to_le_bytes()[..], &bytes].concat()] {
                let mut decoder = Decoder::new(1 << 20);
                decoder.push(input);
                while let Ok(Some(_)) = decoder.next::<Exit>() {}
                let mut decoder = Decoder::new(1 << 20);
                decoder.push(input);
                while let Ok(Some(_)) = decoder.next::<(Vec<String>, Option<Usage>)>() {}
            }
        }
    }
}
