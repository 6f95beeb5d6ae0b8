//! Exponential backoff after several failures in a row.

use std::time::Duration;

use crate::jitter::unit_interval;

/// Pauses that double with every failure, up to a maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExponentialBackoff {
    first: Duration,
    longest: Duration,
}

impl ExponentialBackoff {
    /// Creates a backoff whose pauses run from `first` to `longest`.
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest }
    }

    /// Returns the pause after `failures` failures in a row, counted from 1.
    pub fn pause(self, failures: u32) -> Duration {
        let doubled = 1_u32
            .checked_shl(failures.saturating_sub(1))
            .and_then(|factor| self.first.checked_mul(factor));
        doubled.unwrap_or(self.longest).min(self.longest)
    }

    /// Returns the pause, shortened by a pseudo-random share of up to one half, so that clients
    /// that failed together do not return together. `seed` must differ between clients.
    pub fn jittered(self, failures: u32, seed: u64) -> Duration {
        self.pause(failures)
            .mul_f64(1.0 - unit_interval(seed ^ (u64::from(failures) << 48)) / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BACKOFF: ExponentialBackoff =
        ExponentialBackoff::new(Duration::from_secs(1), Duration::from_secs(30));

    #[test]
    fn pauses_double_up_to_the_longest() {
        for (failures, seconds) in [
            (0, 1),
            (1, 1),
            (2, 2),
            (5, 16),
            (6, 30),
            (31, 30),
            (33, 30),
            (u32::MAX, 30),
        ] {
            assert_eq!(
                BACKOFF.pause(failures),
                Duration::from_secs(seconds),
                "{failures}"
            );
        }
    }

    #[test]
    fn jitter_takes_up_to_a_half_and_differs_by_client() {
        let pauses: Vec<_> = (0..100).map(|seed| BACKOFF.jittered(3, seed)).collect();
        assert!(
            pauses
                .iter()
                .all(|pause| (2.0..=4.0).contains(&pause.as_secs_f64())),
            "{pauses:?}"
        );
        let (least, most) = (pauses.iter().min().unwrap(), pauses.iter().max().unwrap());
        assert!(
            *most - *least > Duration::from_secs(1),
            "{least:?} {most:?}"
        );
    }
}
