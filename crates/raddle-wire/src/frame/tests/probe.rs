//! What must hold whatever arrives: one function that feeds a decoder with bytes of anybody's, in pieces of any size, and looks. The property tests
//! and the fuzzer call it (feature `probe`). It panics when something does not hold.

use prost::Message;

use super::{AHEAD, Decoder, Frame, FrameError, HEADER, MAX_BODY, MAX_HEAD, PIECE};
use crate::v1;

/// The most that a decoder holds: a head with a small body that is not whole, and a large body.
pub const MOST: usize = HEADER + MAX_HEAD + PIECE + MAX_BODY;

/// Feeds a decoder with these bytes, cut as `cuts` say, over and over; in one piece without any. Returns the frames that came out, and the error
/// that ended it, if one did.
pub fn probe(stream: &[u8], cuts: &[u8]) -> (Vec<Frame>, Result<(), FrameError>) {
    let (mut decoder, mut frames) = (Decoder::default(), Vec::new());
    let mut cuts = cuts.iter().cycle();
    let (mut at, mut outcome) = (0, Ok(()));
    while at < stream.len() && outcome.is_ok() {
        let cut = cuts.next().map_or(stream.len(), |cut| size(*cut));
        let piece = &stream[at..stream.len().min(at + cut)];
        // As a socket is read: where it is known where bytes belong, they may be put there.
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
        assert!(taken > 0, "it goes on");
        at += taken;
        check(&decoder, at);
    }
    let given: usize = frames.iter().map(|frame| HEADER + frame.head.len() + frame.body.len()).sum();
    assert!(given + decoder.held() <= at, "nothing is made up");
    for frame in &frames {
        assert!(frame.head.len() <= MAX_HEAD && frame.body.len() <= MAX_BODY);
        // Whoever reads a head reads one of these; that it is one is not promised.
        let _ = (v1::Request::decode(frame.head.clone()), v1::Answer::decode(frame.head.clone()));
    }
    (frames, outcome)
}

/// Small ones and large ones.
fn size(cut: u8) -> usize {
    match cut {
        0..=63 => usize::from(cut) + 1,
        64..=191 => usize::from(cut) * 16,
        192.. => usize::from(cut) * 1024,
    }
}

/// That memory is taken for what has come, and not for what was announced.
fn check(decoder: &Decoder, fed: usize) {
    let (held, room) = (decoder.held(), decoder.capacity());
    assert!(held <= fed && held <= MOST, "{held} of {fed} bytes are held");
    // A buffer that grows by itself may have twice what it needs.
    assert!(room <= 2 * (fed + HEADER) + AHEAD + 2 * PIECE && room <= 2 * MOST, "{room} bytes of memory for {fed}");
}

impl Decoder {
    /// Bytes that have arrived and were not given yet.
    pub(super) fn held(&self) -> usize {
        self.buffer.len() + self.large.as_ref().map_or(0, |large| large.body.len())
    }

    fn capacity(&self) -> usize {
        self.buffer.capacity() + self.large.as_ref().map_or(0, |large| large.body.capacity())
    }
}
