//! The frames of the host protocol.
//!
//! A frame is that of [`crate::frame`]: a length (four bytes, little-endian) and a body. The body
//! is a message as JSON on one line, then, if the message has a payload, a newline and the payload.
//! JSON is in the standard library of nearly every language, so that a host needs no dependency;
//! the payload holds arguments and results, which the codec passes on in the encoding that both
//! sides have agreed on.

use serde::{Serialize, de::DeserializeOwned};

use crate::frame::{Decoder, FrameError, PREFIX};

/// The longest body of a frame: as long as the largest spec or result.
pub const MAX_MESSAGE: usize = 17 << 20;
/// The longest message in front of a payload.
pub const MAX_HEADER: usize = 17 << 20;

/// Why the other side does not speak the protocol. After this error the connection is unusable.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostProtocolError {
    /// A frame cannot be read.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// A frame holds no message of the protocol.
    #[error("not a message of the host protocol: {reason}, in {shown}")]
    Message {
        /// The beginning of the frame.
        shown: String,
        /// The parse error.
        reason: serde_json::Error,
    },
}

/// Appends the frame of a message to `out`. Returns its length.
pub fn encode_message(
    out: &mut Vec<u8>,
    message: &impl Serialize,
    payload: Option<&[u8]>,
) -> usize {
    let start = out.len();
    out.extend([0; PREFIX]);
    serde_json::to_writer(&mut *out, message).expect("a structure of ours is writable to memory");
    if let Some(payload) = payload {
        out.push(b'\n');
        out.extend_from_slice(payload);
    }
    let length = out.len() - start - PREFIX;
    // Saturate: every reader refuses a longer body.
    let prefix = u32::try_from(length).unwrap_or(u32::MAX);
    out[start..start + PREFIX].copy_from_slice(&prefix.to_le_bytes());
    length
}

/// An incremental decoder of messages.
#[derive(Debug)]
pub struct HostDecoder(Decoder);

impl Default for HostDecoder {
    fn default() -> Self {
        Self(Decoder::new(MAX_MESSAGE))
    }
}

impl HostDecoder {
    /// Returns the buffer, for a reader that appends to it in place.
    pub fn buffer(&mut self) -> &mut Vec<u8> {
        self.0.buffer()
    }

    /// Decodes the next message and its payload; `None` until it is complete.
    #[expect(
        clippy::type_complexity,
        reason = "a message, and the payload of those that have one"
    )]
    pub fn next_message<T: DeserializeOwned>(
        &mut self,
    ) -> Result<Option<(T, Option<Vec<u8>>)>, HostProtocolError> {
        let Some(body) = self.0.next_body()? else {
            return Ok(None);
        };
        let end = body.iter().position(|byte| *byte == b'\n');
        let (header, payload) = match end {
            Some(end) => (&body[..end], Some(body[end + 1..].to_vec())),
            None => (body, None),
        };
        match serde_json::from_slice(header) {
            Ok(message) => Ok(Some((message, payload))),
            Err(reason) => Err(HostProtocolError::Message {
                shown: format!(
                    "{:?}",
                    String::from_utf8_lossy(&header[..header.len().min(80)])
                ),
                reason,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{super::*, *};

    #[test]
    fn decodes_messages_with_and_without_payload_split_anywhere() {
        let mut wire = Vec::new();
        let start = ToHost::Start(StartAttempt::new(7, "add"));
        encode_message(&mut wire, &start, Some(b"[1,\n2]"));
        encode_message(&mut wire, &ToHost::Ping(Ping { n: 3 }), None);
        for piece in [1, 5, wire.len()] {
            let (mut decoder, mut read) = (HostDecoder::default(), Vec::new());
            for bytes in wire.chunks(piece) {
                decoder.buffer().extend_from_slice(bytes);
                while let Some(message) = decoder.next_message::<ToHost<'static>>().unwrap() {
                    read.push(message);
                }
            }
            let expected = [
                (start.clone(), Some(b"[1,\n2]".to_vec())),
                (ToHost::Ping(Ping { n: 3 }), None),
            ];
            assert_eq!(read, expected, "{piece}");
        }
    }

    #[test]
    fn messages_are_short_json() {
        let text = |message: &FromHost| serde_json::to_string(message).unwrap();
        assert_eq!(
            text(&FromHost::Ack(AttemptRef { id: 1 })),
            r#"{"ack":{"id":1}}"#
        );
        let error: FromHost = serde_json::from_str(r#"{"error":{"id":1,"message":"no"}}"#).unwrap();
        assert!(matches!(error, FromHost::Error(HostError { id: 1, .. })));
        let hello: FromHost =
            serde_json::from_str(r#"{"hello":{"protocol":1,"routines":{"a":{}}}}"#).unwrap();
        assert!(
            matches!(hello, FromHost::Hello(hello) if hello.routines["a"].kind == RoutineKind::Async)
        );
    }

    #[test]
    fn refuses_a_frame_of_a_gibibyte_by_its_length() {
        let mut decoder = HostDecoder::default();
        decoder.buffer().extend((1u32 << 30).to_le_bytes());
        let refused = decoder.next_message::<FromHost>().unwrap_err();
        assert!(
            refused.to_string().contains("exceeds the maximum"),
            "{refused}"
        );
    }

    #[test]
    fn names_what_is_no_message() {
        let mut wire = 2u32.to_le_bytes().to_vec();
        wire.extend(b"{}");
        let mut decoder = HostDecoder::default();
        decoder.buffer().extend(wire);
        let refused = decoder.next_message::<FromHost>().unwrap_err();
        assert!(
            refused
                .to_string()
                .contains("not a message of the host protocol"),
            "{refused}"
        );
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_not_panic(bytes: Vec<u8>) {
            let mut decoder = HostDecoder::default();
            decoder.buffer().extend((bytes.len() as u32).to_le_bytes());
            decoder.buffer().extend(&bytes);
            while let Ok(Some(_)) = decoder.next_message::<FromHost>() {}
        }
    }
}
