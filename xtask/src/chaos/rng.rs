//! Random numbers that depend on nothing but the seed.

use std::{
    ops::Range,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// A splitmix64 generator. Good enough to choose faults, and for nothing else.
#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A random seed, short because users type it again.
    pub(crate) fn random_seed() -> u64 {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Self::new(now.as_nanos() as u64 ^ u64::from(std::process::id())).next() % 1_000_000
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in this range, which must not be empty.
    pub(crate) fn within(&mut self, range: Range<u64>) -> u64 {
        range.start + self.next() % (range.end - range.start)
    }

    /// A duration in this range of milliseconds.
    pub(crate) fn millis(&mut self, range: Range<u64>) -> Duration {
        Duration::from_millis(self.within(range))
    }

    /// A time before the end of this duration.
    pub(crate) fn moment(&mut self, span: Duration) -> Duration {
        Duration::from_micros(self.within(0..(span.as_micros() as u64).max(1)))
    }

    /// One of these choices, with a probability proportional to its weight.
    pub(crate) fn pick<T: Copy>(&mut self, choices: &[(u32, T)]) -> T {
        let total: u64 = choices.iter().map(|(weight, _)| u64::from(*weight)).sum();
        let mut left = self.within(0..total);
        for (weight, choice) in choices {
            match left.checked_sub(u64::from(*weight)) {
                Some(rest) => left = rest,
                None => return *choice,
            }
        }
        unreachable!("the number is below the sum of all weights")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_its_numbers() {
        let roll = |seed| {
            let mut rng = Rng::new(seed);
            [rng.next(), rng.next(), rng.next()]
        };
        assert_eq!(roll(7), roll(7));
        assert_ne!(roll(7), roll(8));
    }

    #[test]
    fn picks_by_weight() {
        let mut rng = Rng::new(1);
        let picked = (0..10_000)
            .filter(|_| rng.pick(&[(1, true), (3, false), (0, true)]))
            .count();
        assert!((2_200..2_800).contains(&picked), "{picked}");
    }
}
