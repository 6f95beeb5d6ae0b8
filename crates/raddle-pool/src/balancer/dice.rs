//! Numbers that nobody can foresee, but that no secret hangs on.

use std::{
    hash::{BuildHasher, RandomState},
    sync::atomic::{AtomicU64, Ordering},
};

use raddle_core::chance::mix;

/// Throws one number after the other, for any number of threads: a counter in large steps, each scattered (SplitMix64).
#[derive(Debug)]
pub(super) struct Dice(AtomicU64);

impl Dice {
    /// Begins anywhere.
    pub(super) fn new() -> Self {
        Self::from_seed(RandomState::new().hash_one(0))
    }

    pub(super) fn from_seed(seed: u64) -> Self {
        Self(AtomicU64::new(seed))
    }

    /// A number below `end`, which is not 0.
    pub(super) fn below(&self, end: usize) -> usize {
        const STEP: u64 = 0x9E37_79B9_7F4A_7C15;
        let thrown = mix(self.0.fetch_add(STEP, Ordering::Relaxed));
        // The high half of the product is as even as the remainder, and quicker.
        ((u128::from(thrown) * end as u128) >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_side_comes_up_about_as_often() {
        let dice = Dice::from_seed(1);
        let mut counts = [0; 6];
        (0..6000).for_each(|_| counts[dice.below(6)] += 1);
        assert!(counts.iter().all(|count| (850..1150).contains(count)), "{counts:?}");
        assert_eq!(dice.below(1), 0);
    }
}
