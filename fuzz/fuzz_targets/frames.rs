//! Fuzzes the frame decoder of links with arbitrary bytes in pieces of any size.
//! `raddle_wire::frame::probe` checks the invariants.

#![no_main]

use libfuzzer_sys::fuzz_target;
use raddle_wire::frame::probe::probe;

fuzz_target!(|input: &[u8]| {
    // The first byte is the number of bytes that follow with the sizes of the pieces.
    let (many, rest) = input.split_first().map_or((0, input), |(many, rest)| (usize::from(many % 32), rest));
    let (cuts, stream) = rest.split_at(many.min(rest.len()));
    assert_eq!(probe(stream, cuts), probe(stream, &[]), "the pieces do not change the result");
});
