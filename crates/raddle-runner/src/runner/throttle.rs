//! `Throttle`: limits the CPU time of a tree where no cgroup can, by stopping and continuing it. A
//! pure decision on two clocks.

use std::time::Duration;

/// Unused time can be saved up for this many seconds.
const SAVED_SECONDS: f64 = 0.1;

/// Decides when a tree must be stopped. CPU time is a credit that grows with the wall clock and
/// shrinks with use.
#[derive(Debug)]
pub(crate) struct Throttle {
    /// Number of cores.
    share: f64,
    /// Seconds of CPU time.
    credit: f64,
    updated_at: Duration,
    used: Duration,
    stopped: bool,
}

impl Throttle {
    pub(crate) fn new(percent: u32, now: Duration) -> Self {
        let share = f64::from(percent.max(1)) / 100.0;
        Self {
            share,
            credit: share * SAVED_SECONDS,
            updated_at: now,
            used: Duration::ZERO,
            stopped: false,
        }
    }

    /// Whether the tree must be stopped now, after it has used `used` CPU time since its start.
    pub(crate) fn must_stop(&mut self, now: Duration, used: Duration) -> bool {
        let elapsed = now.saturating_sub(self.updated_at).as_secs_f64();
        let spent = used.saturating_sub(self.used).as_secs_f64();
        (self.updated_at, self.used) = (now, self.used.max(used));
        let max = self.share * SAVED_SECONDS;
        self.credit = (self.credit + elapsed * self.share - spent).min(max);
        // Two thresholds, so that a tree is not stopped and continued at every sample.
        self.stopped = if self.stopped {
            self.credit < max / 2.0
        } else {
            self.credit <= 0.0
        };
        self.stopped
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn gives_a_greedy_tree_its_share(percent in 5u32..200) {
            let (step, mut used) = (Duration::from_millis(10), Duration::ZERO);
            let mut throttle = Throttle::new(percent, Duration::ZERO);
            let mut stopped = false;
            for n in 1..=2000 {
                if !stopped {
                    used += step * 2;
                }
                stopped = throttle.must_stop(step * n, used);
            }
            let share = used.as_secs_f64() / 20.0 * 100.0;
            prop_assert!((share - f64::from(percent)).abs() < f64::from(percent) * 0.05 + 1.0, "{} of {}", share, percent);
        }
    }

    #[test]
    fn limits_how_much_unused_time_is_saved() {
        let mut throttle = Throttle::new(50, Duration::ZERO);
        assert!(!throttle.must_stop(Duration::from_secs(3600), Duration::ZERO));
        assert!(throttle.must_stop(Duration::from_secs(3601), Duration::from_secs(1)));
    }
}
