//! The share of processor time that a tree may take, where no cgroup can enforce it: a decision made of two clocks.

use std::time::Duration;

/// Unused time can be saved up for this long.
const WINDOW: f64 = 0.1;

/// Says when a tree must stand still. Processor time is a credit that grows with the wall clock and shrinks with use.
#[derive(Debug)]
pub(crate) struct Throttle {
    /// Cores.
    share: f64,
    /// Seconds of processor time.
    credit: f64,
    at: Duration,
    used: Duration,
    held: bool,
}

impl Throttle {
    pub(crate) fn new(percent: u32, now: Duration) -> Self {
        let share = f64::from(percent.max(1)) / 100.0;
        Self {
            share,
            credit: share * WINDOW,
            at: now,
            used: Duration::ZERO,
            held: false,
        }
    }

    /// Whether the tree must stand still now, after it has used `used` since it began.
    pub(crate) fn hold(&mut self, now: Duration, used: Duration) -> bool {
        let elapsed = now.saturating_sub(self.at).as_secs_f64();
        let spent = used.saturating_sub(self.used).as_secs_f64();
        (self.at, self.used) = (now, self.used.max(used));
        let most = self.share * WINDOW;
        self.credit = (self.credit + elapsed * self.share - spent).min(most);
        // Two thresholds, so that a tree is not stopped and let go at every sample.
        self.held = if self.held {
            self.credit < most / 2.0
        } else {
            self.credit <= 0.0
        };
        self.held
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_greedy_tree_gets_its_share(percent in 5u32..200) {
            let (step, mut used) = (Duration::from_millis(10), Duration::ZERO);
            let mut throttle = Throttle::new(percent, Duration::ZERO);
            let mut held = false;
            for n in 1..=2000 {
                if !held {
                    used += step * 2;
                }
                held = throttle.hold(step * n, used);
            }
            let share = used.as_secs_f64() / 20.0 * 100.0;
            prop_assert!((share - f64::from(percent)).abs() < f64::from(percent) * 0.05 + 1.0, "{} of {}", share, percent);
        }
    }

    #[test]
    fn time_that_was_not_used_is_not_saved_up_for_ever() {
        let mut throttle = Throttle::new(50, Duration::ZERO);
        assert!(!throttle.hold(Duration::from_secs(3600), Duration::ZERO));
        assert!(throttle.hold(Duration::from_secs(3601), Duration::from_secs(1)));
    }
}
