//! The frame codec of Raddle's private connections: worker and runner, runner and fork server,
//! container supervisor and process 1, remote broker.
//!
//! A frame is a length (four bytes, little-endian) and a body of that length: one serde value in
//! MessagePack, with field names. Without the names, a reader could not distinguish an internally
//! tagged enum from a tuple. File descriptors travel beside a frame (`SCM_RIGHTS`); the codec does
//! not handle them.
//!
//! Each side treats the other as hostile: lengths and nesting have a maximum, and memory grows with
//! the bytes that have arrived, not with the announced length. After [`Decoder`] returns an error,
//! the connection is unusable.
//!
//! ```
//! use raddle_model::frame::{Decoder, encode};
//!
//! let mut decoder = Decoder::new(1024);
//! decoder.push(&encode(&("started", 42)));
//! let (event, pid): (String, u32) = decoder.next().unwrap().unwrap();
//! assert_eq!((event.as_str(), pid), ("started", 42));
//! assert!(decoder.next::<u32>().unwrap().is_none());
//! ```

use serde::{Serialize, de::DeserializeOwned};

/// Size of the length prefix in bytes.
pub const PREFIX: usize = 4;
/// Must exceed 128, the nesting of JSON arguments and metadata that the store accepts.
const MAX_DEPTH: usize = 256;
/// Capacity to which an idle decoder shrinks its buffer.
const MAX_IDLE_CAPACITY: usize = 64 * 1024;

/// Why a frame cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The announced body exceeds the reader's maximum.
    #[error("a frame of {length} bytes exceeds the maximum of {max}")]
    TooLong {
        /// The announced length.
        length: usize,
        /// The maximum of the [`Decoder`].
        max: usize,
    },
    /// The body does not deserialize into the expected type.
    #[error("unreadable structure in a frame: {0}")]
    Unreadable(#[from] rmp_serde::decode::Error),
}

/// Encodes a value as a frame. Where the value comes from elsewhere, the sender must compare the
/// length with the reader's maximum.
pub fn encode(value: &impl Serialize) -> Vec<u8> {
    let mut frame = Vec::new();
    encode_into(&mut frame, value);
    frame
}

/// Appends the frame of a value to `out`.
pub fn encode_into(out: &mut Vec<u8>, value: &impl Serialize) {
    let start = out.len();
    out.extend([0; PREFIX]);
    rmp_serde::encode::write_named(out, value).expect("a structure of ours is writable to memory");
    // Saturate: every reader refuses a longer body.
    let length = u32::try_from(out.len() - start - PREFIX).unwrap_or(u32::MAX);
    out[start..start + PREFIX].copy_from_slice(&length.to_le_bytes());
}

/// An incremental decoder: takes bytes as they arrive and returns the values of complete frames.
#[derive(Debug)]
pub struct Decoder {
    buffer: Vec<u8>,
    /// Offset of the first unread byte.
    start: usize,
    max: usize,
}

impl Decoder {
    /// Creates a decoder for bodies of at most `max` bytes.
    pub const fn new(max: usize) -> Self {
        Self {
            buffer: Vec::new(),
            start: 0,
            max,
        }
    }

    /// Appends received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the buffer, for a reader that appends to it in place.
    pub fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.buffer
    }

    /// Returns whether no partial frame is buffered.
    pub fn is_empty(&self) -> bool {
        self.start == self.buffer.len()
    }

    /// Returns how many bytes of the current frame are missing, or `None` while its length is
    /// unknown.
    pub fn missing(&self) -> Result<Option<usize>, FrameError> {
        let rest = &self.buffer[self.start..];
        let Some(prefix) = rest.first_chunk() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*prefix) as usize;
        if length > self.max {
            return Err(FrameError::TooLong {
                length,
                max: self.max,
            });
        }
        Ok(Some((PREFIX + length).saturating_sub(rest.len())))
    }

    /// Decodes the next frame; `None` until it is complete.
    #[expect(
        clippy::should_implement_trait,
        reason = "each frame may be of another type, and more may come after `None`"
    )]
    pub fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, FrameError> {
        let Some(body) = self.next_body()? else {
            return Ok(None);
        };
        let mut reader = rmp_serde::Deserializer::from_read_ref(body);
        reader.set_max_depth(MAX_DEPTH);
        Ok(Some(T::deserialize(&mut reader)?))
    }

    /// Returns the body of the next frame as it is; `None` until it is complete.
    pub fn next_body(&mut self) -> Result<Option<&[u8]>, FrameError> {
        if self.missing()? != Some(0) {
            self.buffer.drain(..self.start);
            self.start = 0;
            if self.buffer.len() < MAX_IDLE_CAPACITY {
                self.buffer.shrink_to(MAX_IDLE_CAPACITY);
            }
            return Ok(None);
        }
        let (prefix, rest) = self.buffer[self.start..]
            .split_first_chunk()
            .expect("a whole frame has a length");
        let body = &rest[..u32::from_le_bytes(*prefix) as usize];
        self.start += PREFIX + body.len();
        Ok(Some(body))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{ExitStatus, ResourceUsage};

    #[test]
    fn decodes_frames_split_anywhere() {
        let sent = [
            ExitStatus::Code { code: 3 },
            ExitStatus::Timeout,
            ExitStatus::NotFound {
                message: "command not found: x".into(),
            },
        ];
        let wire: Vec<u8> = sent.iter().flat_map(encode).collect();
        for piece in [1, 7, wire.len()] {
            let (mut decoder, mut read) = (Decoder::new(1024), Vec::new());
            for bytes in wire.chunks(piece) {
                decoder.push(bytes);
                while let Some(exit) = decoder.next::<ExitStatus>().unwrap() {
                    read.push(exit);
                }
            }
            assert_eq!(read, sent, "{piece}");
            assert!(decoder.is_empty());
        }
    }

    #[test]
    fn every_exit_round_trips() {
        use crate::limits::LimitKind::MaxProcs;
        let message = String::from("m");
        let exits = [
            ExitStatus::Signal { signal: 9 },
            ExitStatus::OutOfMemory,
            ExitStatus::Limit { limit: MaxProcs },
            ExitStatus::NotExecutable {
                message: message.clone(),
            },
            ExitStatus::SpawnFailed {
                message: message.clone(),
            },
            ExitStatus::WorkerLost { message },
            ExitStatus::LeaseExpired,
            ExitStatus::Cancelled,
            ExitStatus::Killed,
        ];
        for exit in exits {
            let mut decoder = Decoder::new(1024);
            decoder.push(&encode(&exit));
            assert_eq!(decoder.next::<ExitStatus>().unwrap(), Some(exit));
        }
    }

    #[test]
    fn refuses_a_long_frame_by_its_length() {
        let mut decoder = Decoder::new(16);
        decoder.push(&[17, 0, 0, 0]);
        assert!(matches!(
            decoder.next::<String>(),
            Err(FrameError::TooLong {
                length: 17,
                max: 16
            })
        ));
        let mut decoder = Decoder::new(16);
        decoder.push(&[16, 0, 0, 0, 1]);
        assert_eq!(decoder.missing().unwrap(), Some(15));
        assert!(matches!(decoder.next::<String>(), Ok(None)));
        let mut decoder = Decoder::new(usize::MAX);
        decoder.push(&[0xff; 5]);
        assert!(matches!(decoder.next::<String>(), Ok(None)) && decoder.buffer().capacity() < 1024);
    }

    #[test]
    fn shrinks_the_buffer_after_a_large_frame() {
        let mut decoder = Decoder::new(usize::MAX);
        decoder.push(&encode(&"x".repeat(16 * MAX_IDLE_CAPACITY)));
        // First byte of the next frame.
        decoder.push(&[7]);
        assert!(
            decoder.next::<String>().unwrap().is_some()
                && decoder.next::<String>().unwrap().is_none()
        );
        assert!(!decoder.is_empty() && decoder.buffer().capacity() <= MAX_IDLE_CAPACITY);
        decoder.push(&encode(&"y".repeat(7 - 1))[1..]);
        assert_eq!(decoder.next::<String>().unwrap().as_deref(), Some("yyyyyy"));
    }

    #[test]
    fn refuses_deep_nesting() {
        // Nested arrays of one element each.
        let mut decoder = Decoder::new(usize::MAX);
        decoder.push(&100_000u32.to_le_bytes());
        decoder.push(&vec![0x91; 100_000]);
        assert!(decoder.next::<serde_json::Value>().is_err());
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_not_panic(bytes: Vec<u8>, cut in 0usize..64) {
            let body = encode(&(&bytes, 1u8));
            for input in [&bytes[..], &body[..cut.min(body.len())], &[&(bytes.len() as u32).to_le_bytes()[..], &bytes].concat()] {
                let mut decoder = Decoder::new(1 << 20);
                decoder.push(input);
                while let Ok(Some(_)) = decoder.next::<ExitStatus>() {}
                let mut decoder = Decoder::new(1 << 20);
                decoder.push(input);
                while let Ok(Some(_)) = decoder.next::<(Vec<String>, Option<ResourceUsage>)>() {}
            }
        }
    }
}
