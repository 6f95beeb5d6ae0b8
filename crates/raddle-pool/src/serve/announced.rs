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

use super::gate::Gate;
use crate::stream::MAX_MESSAGE;

/// What comes before a message: whether it is compressed, and its length.
const HEADER: usize = 5;
/// A message of so many bytes is read as it comes.
const SMALL: usize = 64 * 1024;

/// The body of a request, in which messages are announced.
pub(super) struct Announced {
    body: Body,
    messages: Messages,
    gate: Arc<Gate>,
}

impl Announced {
    pub(super) fn new(body: Body, gate: Arc<Gate>) -> Self {
        Self { body, messages: Messages::default(), gate }
    }
}

impl http_body::Body for Announced {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        loop {
            let Some(frame) = ready!(Pin::new(&mut self.body).poll_frame(cx)?) else {
                // What was held back is not whole, and nobody has to take memory for it.
                return Poll::Ready(None);
            };
            let arrived = match frame.into_data() {
                Ok(arrived) => arrived,
                Err(other) => return Poll::Ready(Some(Ok(other))),
            };
            match self.messages.take(arrived) {
                Ok(given) if given.is_empty() => {}
                Ok(given) => return Poll::Ready(Some(Ok(Frame::data(given)))),
                Err(TooLarge(bytes)) => {
                    let message =
                        format!("a message of {bytes} bytes is announced, and at most {MAX_MESSAGE} are read");
                    self.gate.refuse_message(&message);
                    return Poll::Ready(Some(Err(Status::out_of_range(message))));
                }
            }
        }
    }
}

/// What has come, and how much of it may be passed on.
#[derive(Default)]
struct Messages {
    /// The beginning of a message of which too little is there.
    held: BytesMut,
    /// So many bytes of the message that was last begun are still to come.
    left: usize,
}

/// A message that is larger than any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TooLarge(usize);

impl Messages {
    /// Takes what has arrived, and gives what may be passed on.
    fn take(&mut self, arrived: Bytes) -> Result<Bytes, TooLarge> {
        if self.held.is_empty() && arrived.len() <= self.left {
            self.left -= arrived.len();
            return Ok(arrived);
        }
        // Most messages are small, and come whole.
        if self.held.is_empty() && self.left == 0 && begun(&arrived)? == Some(arrived.len()) {
            return Ok(arrived);
        }
        self.held.extend_from_slice(&arrived);
        let mut given = self.left.min(self.held.len());
        self.left -= given;
        while let Some(whole) = begun(&self.held[given..])? {
            let there = self.held.len() - given;
            if whole > SMALL && there < whole / 2 {
                break;
            }
            let more = whole.min(there);
            given += more;
            self.left = whole - more;
        }
        Ok(self.held.split_to(given).freeze())
    }
}

/// How many bytes the message has that begins here, if that is known.
fn begun(bytes: &[u8]) -> Result<Option<usize>, TooLarge> {
    let Some([_, length @ ..]) = bytes.first_chunk::<HEADER>() else { return Ok(None) };
    let length = u32::from_be_bytes(*length) as usize;
    if length > MAX_MESSAGE { Err(TooLarge(length)) } else { Ok(Some(HEADER + length)) }
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
        let mut messages = Messages::default();
        let (some, rest) = large.split_at(4 * SMALL);
        assert_eq!(messages.take(Bytes::copy_from_slice(some)), Ok(Bytes::new()));
        let (some, rest) = rest.split_at(2 * SMALL);
        assert_eq!(messages.take(Bytes::copy_from_slice(some)).unwrap().len(), 6 * SMALL);
        assert_eq!(messages.take(Bytes::copy_from_slice(rest)).unwrap().len(), rest.len());
        assert_eq!((messages.held.len(), messages.left), (0, 0));
    }

    #[test]
    fn what_is_larger_than_any_is_refused_at_once() {
        let mut messages = Messages::default();
        let announced = [&[0], &u32::MAX.to_be_bytes()[..]].concat();
        assert_eq!(messages.take(announced.into()), Err(TooLarge(u32::MAX as usize)));
    }

    proptest! {
        #[test]
        fn what_is_sent_arrives_however_it_is_cut(
            sizes in vec(prop_oneof![3 => 0..100_usize, 1 => 0..5 * SMALL], 1..6),
            cuts in vec(prop_oneof![1..20_usize, 1..2 * SMALL], 1..20),
        ) {
            let sent: Vec<u8> = sizes.iter().flat_map(|size| message(*size)).collect();
            let (mut messages, mut given, mut left) = (Messages::default(), Vec::new(), &sent[..]);
            for cut in cuts.iter().cycle() {
                if left.is_empty() {
                    break;
                }
                let (piece, rest) = left.split_at((*cut).min(left.len()));
                given.extend_from_slice(&messages.take(Bytes::copy_from_slice(piece)).unwrap());
                left = rest;
            }
            prop_assert_eq!(messages.held.len(), 0);
            prop_assert_eq!(given, sent);
        }
    }
}
