//! Deterministic pseudo-random numbers: equal inputs give equal numbers, so that plans can be
//! recomputed.

/// Spreads the bits of a number over all 64 bits (one step of SplitMix64). The function is a
/// bijection.
pub fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Maps `seed` to a number in `[0, 1)`.
pub fn unit_interval(seed: u64) -> f64 {
    (mix(seed) >> 11) as f64 / (1u64 << 53) as f64
}
