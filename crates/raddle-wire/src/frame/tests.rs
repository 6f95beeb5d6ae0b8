//! Frames round-trip, and invalid frames are refused.

use proptest::{collection::vec, prelude::*};

use super::{probe::probe, *};
use crate::v1;

fn head(id: u64) -> v1::Request {
    v1::Request { id, what: None }
}

fn decode(decoder: &mut Decoder, bytes: &[u8]) -> Result<Vec<(u64, Bytes)>, FrameError> {
    let mut frames = Vec::new();
    decoder.take(bytes, |frame| {
        frames.push((v1::Request::decode(frame.head).unwrap().id, frame.body))
    })?;
    Ok(frames)
}

/// A body in two pieces, with another message in between.
fn interleaved() -> Vec<u8> {
    let mut bytes = Vec::new();
    put_beginning(&mut bytes, &head(1).encode_to_vec(), 2, 5);
    bytes.extend_from_slice(b"la");
    put(&mut bytes, &head(2), b"small");
    put_beginning(&mut bytes, &[], 3, 5);
    bytes.extend_from_slice(b"rge");
    put(&mut bytes, &head(3), b"");
    bytes
}

/// Piece sizes of a stream; see [`probe`].
fn cuts() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 1..20)
}

/// Header fields around the limits, and arbitrary ones.
fn header() -> impl Strategy<Value = [u32; 3]> {
    let number = |bound: usize| prop_oneof![4 => 0..20_u32, 2 => Just(bound as u32), 1 => Just(bound as u32 + 1), 1 => any::<u32>()];
    [
        number(MAX_HEAD).boxed(),
        number(PIECE).boxed(),
        number(MAX_BODY).boxed(),
    ]
}

#[derive(Clone, Debug)]
struct Sent {
    id: u64,
    size: usize,
    /// Size of the pieces, if the message is not sent in one frame.
    piece: Option<usize>,
}

impl Sent {
    fn body(&self) -> Vec<u8> {
        (0..self.size).map(|at| at as u8).collect()
    }
}

fn message() -> impl Strategy<Value = Sent> {
    let size = prop_oneof![6 => 0..100_usize, 2 => 0..70_000_usize, 1 => (PIECE - 2)..(PIECE + 1)];
    let piece = prop::option::of(prop_oneof![1..50_usize, 1000..PIECE]);
    // A head with the id 0 encodes to no bytes, and no call has that id.
    (1..1000_u64, size, piece).prop_map(|(id, size, piece)| Sent {
        id,
        size,
        piece: piece.filter(|piece| *piece < size),
    })
}

/// Encodes messages in the order of an outbox: small messages go between the pieces of a large one,
/// and only one large message is in progress.
fn encode_stream(messages: &[Sent]) -> Vec<u8> {
    let (mut bytes, mut small, mut large) = (Vec::new(), Vec::new(), Vec::new());
    for message in messages {
        if message.piece.is_some() {
            large.push(message)
        } else {
            small.push(message)
        }
    }
    let mut small = small.into_iter();
    for message in large {
        let (body, piece) = (message.body(), message.piece.unwrap_or(1));
        for (at, part) in body.chunks(piece).enumerate() {
            if at == 0 {
                put_beginning(
                    &mut bytes,
                    &head(message.id).encode_to_vec(),
                    part.len(),
                    body.len(),
                );
            } else {
                put_beginning(&mut bytes, &[], part.len(), body.len());
            }
            bytes.extend_from_slice(part);
            small
                .next()
                .into_iter()
                .for_each(|message| put(&mut bytes, &head(message.id), &message.body()));
        }
    }
    small.for_each(|message| put(&mut bytes, &head(message.id), &message.body()));
    bytes
}

/// Corruptions of a byte stream.
#[derive(Clone, Copy, Debug)]
enum Corruption {
    Flip(u8),
    Drop(u8),
    Double(u8),
    End,
}

fn corruption() -> impl Strategy<Value = Corruption> {
    prop_oneof![
        any::<u8>().prop_map(Corruption::Flip),
        any::<u8>().prop_map(Corruption::Drop),
        any::<u8>().prop_map(Corruption::Double),
        Just(Corruption::End),
    ]
}

impl Corruption {
    fn apply(self, bytes: &mut Vec<u8>, place: prop::sample::Index) {
        if bytes.is_empty() {
            return;
        }
        let at = place.index(bytes.len());
        let end = |many: u8| bytes.len().min(at + usize::from(many));
        match self {
            Self::Flip(by) => bytes[at] ^= by,
            Self::Drop(many) => drop(bytes.drain(at..end(many))),
            Self::Double(many) => {
                let part = bytes[at..end(many)].to_vec();
                bytes.splice(at..at, part);
            }
            Self::End => bytes.truncate(at),
        }
    }
}

proptest! {
    #[test]
    fn decodes_interleaved_frames_split_anywhere(cuts in vec(1_usize..40, 1..100)) {
        let (bytes, mut decoder, mut frames) = (interleaved(), Decoder::default(), Vec::new());
        let (mut at, mut cuts) = (0, cuts.into_iter().cycle());
        while at < bytes.len() {
            let end = bytes.len().min(at + cuts.next().unwrap());
            frames.extend(decode(&mut decoder, &bytes[at..end]).unwrap());
            at = end;
        }
        let expected: Vec<(u64, Bytes)> =
            vec![(2, Bytes::from_static(b"small")), (1, Bytes::from_static(b"large")), (3, Bytes::new())];
        prop_assert_eq!(frames, expected);
    }

    /// Arbitrary bytes, in pieces of any size: `probe` asserts the invariants.
    #[test]
    fn arbitrary_bytes_keep_the_invariants(bytes in vec(any::<u8>(), 0..4096), cuts in cuts()) {
        let (whole, cut) = (probe(&bytes, &[]), probe(&bytes, &cuts));
        prop_assert_eq!(whole, cut);
    }

    /// Headers that are almost valid, which get further than random bytes.
    #[test]
    fn arbitrary_headers_keep_the_invariants(headers in vec(header(), 0..40), fill in any::<u8>(), cuts in cuts()) {
        let mut bytes = Vec::new();
        for [head, piece, whole] in headers {
            [head, piece, whole].iter().for_each(|number| bytes.extend_from_slice(&number.to_le_bytes()));
            let follows = (head as usize).saturating_add(piece as usize).min(64 * 1024);
            bytes.extend(std::iter::repeat_n(fill, follows));
        }
        let (whole, cut) = (probe(&bytes, &[]), probe(&bytes, &cuts));
        prop_assert_eq!(whole, cut);
    }

    #[test]
    fn messages_round_trip(messages in vec(message(), 0..12), cuts in cuts()) {
        let (frames, outcome) = probe(&encode_stream(&messages), &cuts);
        prop_assert_eq!(outcome, Ok(()));
        let mut arrived: Vec<_> = frames.into_iter().map(|frame| (frame.head.to_vec(), frame.body.to_vec())).collect();
        let mut expected: Vec<_> = messages.iter().map(|message| (head(message.id).encode_to_vec(), message.body())).collect();
        // A large message completes after those that were sent between its pieces.
        [&mut arrived, &mut expected].into_iter().for_each(|all| all.sort());
        prop_assert_eq!(arrived, expected);
    }

    #[test]
    fn corrupted_messages_keep_the_invariants(
        messages in vec(message(), 1..6),
        corruptions in vec((any::<prop::sample::Index>(), corruption()), 1..8),
        cuts in cuts(),
    ) {
        let mut bytes = encode_stream(&messages);
        for (place, corruption) in corruptions {
            corruption.apply(&mut bytes, place);
        }
        let (whole, cut) = (probe(&bytes, &[]), probe(&bytes, &cuts));
        prop_assert_eq!(whole, cut);
    }
}

#[test]
fn reads_a_body_directly_into_its_buffer() {
    let (mut decoder, mut frames) = (Decoder::default(), Vec::new());
    let mut bytes = Vec::new();
    put_beginning(&mut bytes, &head(1).encode_to_vec(), 3, 5);
    assert!(decoder.room().is_none());
    assert_eq!(decode(&mut decoder, &bytes), Ok(vec![]));
    for piece in [b"la".as_slice(), b"r"] {
        let (body, most) = decoder.room().unwrap();
        body.extend_from_slice(piece);
        assert!(most >= piece.len());
        decoder.filled(piece.len(), |frame| frames.push(frame.body));
    }
    assert!(decoder.room().is_none(), "the next piece has to begin");
    bytes.clear();
    put_beginning(&mut bytes, &[], 2, 5);
    assert_eq!(decode(&mut decoder, &bytes), Ok(vec![]));
    decoder.room().unwrap().0.extend_from_slice(b"ge");
    decoder.filled(2, |frame| frames.push(frame.body));
    assert_eq!(frames, ["large"]);
    assert!(decoder.room().is_none());
}

#[test]
fn refuses_invalid_frames() {
    let header =
        |head: u32, piece: u32, whole: u32| [head, piece, whole].map(u32::to_le_bytes).concat();
    let begun = [header(1, 0, 5), vec![8]].concat();
    for (bytes, error) in [
        (header(u32::MAX, 0, 0), FrameError::TooLarge),
        (header(1, 0, u32::MAX), FrameError::TooLarge),
        (
            header(1, PIECE as u32 + 1, PIECE as u32 + 1),
            FrameError::TooLarge,
        ),
        (header(1, 2, 1), FrameError::Unfit),
        (header(0, 1, 1), FrameError::Unfit),
        ([begun.clone(), header(0, 0, 5)].concat(), FrameError::Unfit),
        ([begun.clone(), header(0, 1, 6)].concat(), FrameError::Unfit),
        ([begun.clone(), begun.clone()].concat(), FrameError::Unfit),
    ] {
        assert_eq!(
            Decoder::default().take(&bytes, |_| {}),
            Err(error),
            "{bytes:?}"
        );
    }
}

/// A peer that announces the largest body and sends nothing costs no more memory than a small body.
#[test]
fn announced_bodies_take_no_memory() {
    let mut bytes = Vec::new();
    put_beginning(&mut bytes, &head(1).encode_to_vec(), PIECE, MAX_BODY);
    let mut decoder = Decoder::default();
    assert_eq!(decode(&mut decoder, &bytes), Ok(vec![]));
    let (body, _) = decoder.room().unwrap();
    assert!(body.capacity() <= MAX_PREALLOCATION, "{}", body.capacity());
}

#[test]
fn frees_the_memory_of_a_large_head() {
    let (mut decoder, mut bytes) = (Decoder::default(), vec![]);
    put_header(&mut bytes, MAX_HEAD, 0, 0);
    bytes.resize(bytes.len() + MAX_HEAD, 0);
    let mut frames = 0;
    bytes
        .chunks(4096)
        .for_each(|piece| decoder.take(piece, |_| frames += 1).unwrap());
    assert_eq!((frames, decoder.held()), (1, 0));
    assert!(decoder.buffer.capacity() <= MAX_IDLE_CAPACITY);
}

/// A deterministic substitute for the fuzzer: many small inputs, most of which are almost frames.
#[test]
fn many_almost_valid_inputs_keep_the_invariants() {
    let mut state = 0x5eed_u64;
    let mut random = |sides: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % sides
    };
    let (mut whole, mut refused) = (0, 0);
    for _ in 0..200_000 {
        let mut bytes = Vec::new();
        for _ in 0..=random(4) {
            if random(4) > 0 {
                let piece = random(12) as u32;
                let more = [0, 0, random(12) as u32, MAX_BODY as u32 + 1][random(4) as usize];
                [random(6) as u32, piece, piece + more]
                    .iter()
                    .for_each(|part| bytes.extend_from_slice(&part.to_le_bytes()));
            }
            let noise = random(18);
            bytes.extend((0..noise).map(|_| random(256) as u8));
        }
        let cuts: Vec<u8> = (0..=random(4)).map(|_| random(16) as u8).collect();
        let (cut, at_once) = (probe(&bytes, &cuts), probe(&bytes, &[]));
        assert_eq!(cut, at_once, "{bytes:?} by {cuts:?}");
        whole += cut.0.len();
        refused += usize::from(cut.1.is_err());
    }
    // A mixture of valid and invalid input.
    assert!(
        whole > 10_000 && refused > 10_000,
        "{whole} frames, {refused} refused"
    );
}
