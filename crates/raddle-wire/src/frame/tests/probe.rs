//! Decoder invariants: feeds a decoder with arbitrary bytes in pieces of any size, and panics when
//! an invariant is violated. The property tests and the fuzzer call it (feature `probe`).

use prost::Message;

use super::{Decoder, Frame, FrameError, HEADER_LEN, MAX_BODY, MAX_HEAD, MAX_PREALLOCATION, PIECE};
use crate::v1;

/// The most that a decoder holds: a head with an incomplete small body, and a large body.
pub const MAX_HELD: usize = HEADER_LEN + MAX_HEAD + PIECE + MAX_BODY;

/// Feeds a decoder with `stream`, cut into pieces by `cuts` over and over, or in one piece if
/// `cuts` is empty. Returns the decoded frames, and the error that ended the stream, if any.
pub fn probe(stream: &[u8], cuts: &[u8]) -> (Vec<Frame>, Result<(), FrameError>) {
    let (mut decoder, mut frames) = (Decoder::default(), Vec::new());
    let mut cuts = cuts.iter().cycle();
    let (mut at, mut outcome) = (0, Ok(()));
    while at < stream.len() && outcome.is_ok() {
        let cut = cuts.next().map_or(stream.len(), |cut| piece_size(*cut));
        let piece = &stream[at..stream.len().min(at + cut)];
        // Like a socket reader: write bytes directly into the body where possible.
        let is_direct = cut.is_multiple_of(2);
        let taken = match decoder.room().filter(|_| is_direct) {
            Some((body, most)) => {
                let taken = piece.len().min(most);
                body.extend_from_slice(&piece[..taken]);
                decoder.filled(taken, |frame| frames.push(frame));
                taken
            }
            None => {
                outcome = decoder.take(piece, |frame| frames.push(frame));
                piece.len()
            }
        };
        assert!(taken > 0, "the decoder consumes input");
        at += taken;
        check_memory(&decoder, at);
    }
    let given: usize = frames
        .iter()
        .map(|frame| HEADER_LEN + frame.head.len() + frame.body.len())
        .sum();
    assert!(
        given + decoder.held() <= at,
        "frames hold only received bytes"
    );
    for frame in &frames {
        assert!(frame.head.len() <= MAX_HEAD && frame.body.len() <= MAX_BODY);
        // Readers decode heads as one of these. Decoding may fail, but must not panic.
        let _ = (
            v1::Request::decode(frame.head.clone()),
            v1::Answer::decode(frame.head.clone()),
        );
    }
    (frames, outcome)
}

/// Maps a byte to small and large piece sizes.
fn piece_size(cut: u8) -> usize {
    match cut {
        0..=63 => usize::from(cut) + 1,
        64..=191 => usize::from(cut) * 16,
        192.. => usize::from(cut) * 1024,
    }
}

/// Asserts that memory is allocated for received bytes, not for announced ones.
fn check_memory(decoder: &Decoder, fed: usize) {
    let (held, room) = (decoder.held(), decoder.capacity());
    assert!(
        held <= fed && held <= MAX_HELD,
        "{held} of {fed} bytes are held"
    );
    // A growing `Vec` may have twice the capacity it needs.
    assert!(
        room <= 2 * (fed + HEADER_LEN) + MAX_PREALLOCATION + 2 * PIECE && room <= 2 * MAX_HELD,
        "{room} bytes of memory for {fed}"
    );
}

impl Decoder {
    /// Returns the number of received bytes that have not been returned yet.
    pub(super) fn held(&self) -> usize {
        self.buffer.len()
            + self
                .partial
                .as_ref()
                .map_or(0, |partial| partial.body.len())
    }

    fn capacity(&self) -> usize {
        self.buffer.capacity()
            + self
                .partial
                .as_ref()
                .map_or(0, |partial| partial.body.capacity())
    }
}
