//! Bounds the memory for gRPC messages by what has arrived instead of by the announced length.
//!
//! tonic reads a message's length first, and allocates that much. So the beginning of a large
//! message is held back until half of it is there: a client that announces much and sends little
//! occupies little.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::{Bytes, BytesMut};
use http_body::Frame;
use tonic::{Status, body::Body};

use super::authorizer::Authorizer;
use crate::stream::MAX_MESSAGE;

/// Header of a message: a compression flag and the length.
const HEADER_LEN: usize = 5;
/// Smaller messages are passed on as they arrive.
const SMALL_MESSAGE: usize = 64 * 1024;

/// A request body that holds back large messages.
pub(super) struct LimitedBody {
    body: Body,
    message: MessageBuffer,
    authorizer: Arc<Authorizer>,
}

impl LimitedBody {
    pub(super) fn new(body: Body, authorizer: Arc<Authorizer>) -> Self {
        Self {
            body,
            message: MessageBuffer::default(),
            authorizer,
        }
    }
}

impl http_body::Body for LimitedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        loop {
            let Some(frame) = ready!(Pin::new(&mut self.body).poll_frame(cx)?) else {
                // Drops an incomplete message that was held back.
                return Poll::Ready(None);
            };
            let arrived = match frame.into_data() {
                Ok(arrived) => arrived,
                Err(other) => return Poll::Ready(Some(Ok(other))),
            };
            match self.message.push(arrived) {
                Ok(passed) if passed.is_empty() => {}
                Ok(passed) => return Poll::Ready(Some(Ok(Frame::data(passed)))),
                Err(bytes) => {
                    let message = format!(
                        "expected one message of at most {MAX_MESSAGE} bytes, got {bytes} bytes"
                    );
                    self.authorizer.record_bad_message(&message);
                    return Poll::Ready(Some(Err(Status::out_of_range(message))));
                }
            }
        }
    }
}

/// The state of a request's only message.
#[derive(Default)]
struct MessageBuffer {
    /// The beginning of the message, held back.
    held: BytesMut,
    /// Bytes still to come, once the beginning was passed on.
    remaining: Option<usize>,
}

impl MessageBuffer {
    /// Takes what has arrived, and returns what may be passed on. An error holds the number of
    /// bytes announced or received.
    fn push(&mut self, arrived: Bytes) -> Result<Bytes, usize> {
        if let Some(remaining) = &mut self.remaining {
            *remaining = remaining.checked_sub(arrived.len()).ok_or(arrived.len())?;
            return Ok(arrived);
        }
        self.held.extend_from_slice(&arrived);
        let Some([_, length @ ..]) = self.held.first_chunk::<HEADER_LEN>() else {
            return Ok(Bytes::new());
        };
        let length = u32::from_be_bytes(*length) as usize;
        let (total, received) = (HEADER_LEN + length, self.held.len());
        if length > MAX_MESSAGE {
            return Err(length);
        }
        if total > SMALL_MESSAGE && received < total / 2 {
            return Ok(Bytes::new());
        }
        self.remaining = Some(total.checked_sub(received).ok_or(received)?);
        Ok(self.held.split().freeze())
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    fn encode_message(bytes: usize) -> Vec<u8> {
        [&[0], &(bytes as u32).to_be_bytes()[..], &vec![7; bytes]].concat()
    }

    #[test]
    fn large_message_is_held_back_until_half_of_it_has_arrived() {
        let large = encode_message(10 * SMALL_MESSAGE);
        let mut message = MessageBuffer::default();
        let (some, rest) = large.split_at(4 * SMALL_MESSAGE);
        assert_eq!(message.push(Bytes::copy_from_slice(some)), Ok(Bytes::new()));
        let (some, rest) = rest.split_at(2 * SMALL_MESSAGE);
        assert_eq!(
            message.push(Bytes::copy_from_slice(some)).unwrap().len(),
            6 * SMALL_MESSAGE
        );
        assert_eq!(
            message.push(Bytes::copy_from_slice(rest)).unwrap().len(),
            rest.len()
        );
        assert_eq!((message.held.len(), message.remaining), (0, Some(0)));
    }

    #[test]
    fn oversized_message_is_refused_at_its_header() {
        let announced = [&[0], &u32::MAX.to_be_bytes()[..]].concat();
        assert_eq!(
            MessageBuffer::default().push(announced.into()),
            Err(u32::MAX as usize)
        );
    }

    #[test]
    fn second_message_is_refused() {
        let two = [encode_message(3), encode_message(3)].concat();
        assert!(MessageBuffer::default().push(two.into()).is_err());
        let mut message = MessageBuffer::default();
        message.push(encode_message(3).into()).unwrap();
        assert!(message.push(encode_message(3).into()).is_err());
    }

    proptest! {
        #[test]
        fn message_arrives_unchanged_however_it_is_split(
            size in prop_oneof![3 => 0..100_usize, 1 => 0..5 * SMALL_MESSAGE],
            cuts in vec(prop_oneof![1..20_usize, 1..2 * SMALL_MESSAGE], 1..20),
        ) {
            let sent = encode_message(size);
            let (mut message, mut given, mut left) = (MessageBuffer::default(), Vec::new(), &sent[..]);
            for cut in cuts.iter().cycle() {
                if left.is_empty() {
                    break;
                }
                let (piece, rest) = left.split_at((*cut).min(left.len()));
                given.extend_from_slice(&message.push(Bytes::copy_from_slice(piece)).unwrap());
                left = rest;
            }
            prop_assert_eq!(message.held.len(), 0);
            prop_assert_eq!(given, sent);
        }
    }
}
