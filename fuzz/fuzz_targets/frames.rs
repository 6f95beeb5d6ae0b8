//! What a link may be sent: bytes of anybody's, in pieces of any size. See `raddle_wire::frame::probe` for what must hold.

#![no_main]

use libfuzzer_sys::fuzz_target;
use raddle_wire::frame::probe::probe;

fuzz_target!(|input: &[u8]| {
    // The first byte says how many of those that follow say how the rest is cut.
    let (many, rest) = input.split_first().map_or((0, input), |(many, rest)| (usize::from(many % 32), rest));
    let (cuts, stream) = rest.split_at(many.min(rest.len()));
    assert_eq!(probe(stream, cuts), probe(stream, &[]), "however it is cut, it is the same");
});
