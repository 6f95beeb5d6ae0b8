//! Messages of gRPC that are announced: so much memory for one as has come of it, and not as much as it says that it will have.
//!
//! A message begins with its length, and whoever reads it takes memory for all of it then. So the beginning of one that is said to be large is held back
//! until half of it is there: whoever announces much and sends little holds little.

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

/// What comes before a message: whether it is compressed, and its length.
const HEADER: usize = 5;
/// A message of so many bytes is read as it comes.
const SMALL: usize = 64 * 1024;

/// The body of a request, in which messages are announced.
pub(super) struct LimitedBody {
    body: Body,
    announcement: MessageHeader,
    gate: Arc<Authorizer>,
}

impl LimitedBody {
    pub(super) fn new(body: Body, gate: Arc<Authorizer>) -> Self {
        Self {
            body,
            announcement: MessageHeader::default(),
            gate,
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
                // What was held back is not whole, and nobody has to take memory for it.
                return Poll::Ready(None);
            };
            let arrived = match frame.into_data() {
                Ok(arrived) => arrived,
                Err(other) => return Poll::Ready(Some(Ok(other))),
            };
            match self.announcement.take(arrived) {
                Ok(given) if given.is_empty() => {}
                Ok(given) => return Poll::Ready(Some(Ok(Frame::data(given)))),
                Err(bytes) => {
                    let message =
                        format!("{bytes} bytes are not one message of at most {MAX_MESSAGE}");
                    self.gate.refuse_message(&message);
                    return Poll::Ready(Some(Err(Status::out_of_range(message))));
                }
            }
        }
    }
}

/// What has come of the one message that a request has, and how much of it may be passed on.
#[derive(Default)]
struct MessageHeader {
    /// The beginning of the message, of which too little is there.
    held: BytesMut,
    /// So many bytes are still to come of the message, once its beginning was passed on.
    left: Option<usize>,
}

impl MessageHeader {
    /// Takes what has arrived, and gives what may be passed on. An error says how many bytes are announced, or have come.
    fn take(&mut self, arrived: Bytes) -> Result<Bytes, usize> {
        if let Some(left) = &mut self.left {
            *left = left.checked_sub(arrived.len()).ok_or(arrived.len())?;
            return Ok(arrived);
        }
        self.held.extend_from_slice(&arrived);
        let Some([_, length @ ..]) = self.held.first_chunk::<HEADER>() else {
            return Ok(Bytes::new());
        };
        let length = u32::from_be_bytes(*length) as usize;
        let (whole, there) = (HEADER + length, self.held.len());
        if length > MAX_MESSAGE {
            return Err(length);
        }
        if whole > SMALL && there < whole / 2 {
            return Ok(Bytes::new());
        }
        self.left = Some(whole.checked_sub(there).ok_or(there)?);
        Ok(self.held.split().freeze())
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    fn message(bytes: usize) -> Vec<u8> {
        [&[0], &(bytes as u32).to_be_bytes()[..], &vec![7; bytes]].concat()
    }

    #[test]
    fn what_is_announced_is_held_back_until_half_of_it_is_there() {
        let large = message(10 * SMALL);
        let mut announcement = MessageHeader::default();
        let (some, rest) = large.split_at(4 * SMALL);
        assert_eq!(
            announcement.take(Bytes::copy_from_slice(some)),
            Ok(Bytes::new())
        );
        let (some, rest) = rest.split_at(2 * SMALL);
        assert_eq!(
            announcement
                .take(Bytes::copy_from_slice(some))
                .unwrap()
                .len(),
            6 * SMALL
        );
        assert_eq!(
            announcement
                .take(Bytes::copy_from_slice(rest))
                .unwrap()
                .len(),
            rest.len()
        );
        assert_eq!((announcement.held.len(), announcement.left), (0, Some(0)));
    }

    #[test]
    fn what_is_larger_than_any_is_refused_at_once() {
        let announced = [&[0], &u32::MAX.to_be_bytes()[..]].concat();
        assert_eq!(
            MessageHeader::default().take(announced.into()),
            Err(u32::MAX as usize)
        );
    }

    #[test]
    fn a_second_message_is_refused() {
        let two = [message(3), message(3)].concat();
        assert!(MessageHeader::default().take(two.into()).is_err());
        let mut announcement = MessageHeader::default();
        announcement.take(message(3).into()).unwrap();
        assert!(announcement.take(message(3).into()).is_err());
    }

    proptest! {
        #[test]
        fn what_is_sent_arrives_however_it_is_cut(
            size in prop_oneof![3 => 0..100_usize, 1 => 0..5 * SMALL],
            cuts in vec(prop_oneof![1..20_usize, 1..2 * SMALL], 1..20),
        ) {
            let sent = message(size);
            let (mut announcement, mut given, mut left) = (MessageHeader::default(), Vec::new(), &sent[..]);
            for cut in cuts.iter().cycle() {
                if left.is_empty() {
                    break;
                }
                let (piece, rest) = left.split_at((*cut).min(left.len()));
                given.extend_from_slice(&announcement.take(Bytes::copy_from_slice(piece)).unwrap());
                left = rest;
            }
            prop_assert_eq!(announcement.held.len(), 0);
            prop_assert_eq!(given, sent);
        }
    }
}
