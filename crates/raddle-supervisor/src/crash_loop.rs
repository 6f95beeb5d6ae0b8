//! Backoff for children that die before they are ready: starts become rarer. A pure decision,
//! without a clock.

use std::time::Duration;

use raddle_model::ExponentialBackoff;

/// The pause after the first death. Each start costs a process and a log line.
const FIRST: Duration = Duration::from_millis(500);
const LONGEST: Duration = Duration::from_secs(60);
const BACKOFF: ExponentialBackoff = ExponentialBackoff::new(FIRST, LONGEST);

/// Delays starts while new children keep dying.
#[derive(Debug, Default)]
pub(crate) struct CrashLoopBackoff {
    /// Deaths in a row. Deaths within one pause count as one.
    deaths: u32,
    until: Duration,
}

/// A pause that has just begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BackoffPause {
    /// Length of the pause.
    pub(crate) pause: Duration,
    /// How many pauses in a row there have been, this one included.
    pub(crate) number: u32,
}

impl CrashLoopBackoff {
    /// Records that a child died before it was ready. Returns the pause that this death begins, or
    /// `None` during a pause: children that were started together die together, and that is logged
    /// once.
    pub(crate) fn died(&mut self, now: Duration) -> Option<BackoffPause> {
        if self.deaths > 0 && now < self.until {
            return None;
        }
        self.deaths += 1;
        let pause = BACKOFF.pause(self.deaths);
        self.until = now + pause;
        Some(BackoffPause {
            pause,
            number: self.deaths,
        })
    }

    /// Records that a child became ready, which ends the crash loop. Returns whether there was one.
    pub(crate) fn ready(&mut self) -> bool {
        std::mem::take(self).deaths > 0
    }

    /// Ends the current pause, because the cause of the deaths may be gone: the next child starts
    /// immediately. If it dies too, the pauses continue to grow from where they were.
    pub(crate) fn release(&mut self) {
        self.until = Duration::ZERO;
    }

    /// Returns the end of the current pause, before which no child is started.
    pub(crate) fn holds_until(&self, now: Duration) -> Option<Duration> {
        (self.deaths > 0 && now < self.until).then_some(self.until)
    }

    /// Returns whether the children that were started last died before they were ready.
    pub(crate) fn is_on(&self) -> bool {
        self.deaths > 0
    }

    /// Returns how many children may be starting at a time: during a crash loop only one, as a
    /// probe.
    pub(crate) fn max_parallel(&self, allowed: usize) -> usize {
        if self.deaths > 0 {
            allowed.min(1)
        } else {
            allowed
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn pauses_double_and_are_reported_once() {
        let mut backoff = CrashLoopBackoff::default();
        assert_eq!(
            (backoff.holds_until(millis(0)), backoff.max_parallel(5)),
            (None, 5)
        );
        assert_eq!(
            backoff.died(millis(100)),
            Some(BackoffPause {
                pause: millis(500),
                number: 1
            })
        );
        assert_eq!(
            backoff.died(millis(101)),
            None,
            "it was started with the first"
        );
        assert_eq!(backoff.holds_until(millis(101)), Some(millis(600)));
        assert_eq!(
            (backoff.holds_until(millis(600)), backoff.max_parallel(5)),
            (None, 1)
        );
        assert_eq!(
            backoff.died(millis(700)),
            Some(BackoffPause {
                pause: millis(1000),
                number: 2
            })
        );
        let mut now = millis(1700);
        for _ in 0..40 {
            now += backoff.died(now).unwrap().pause;
        }
        assert_eq!(backoff.died(now).unwrap().pause, LONGEST);
    }

    #[test]
    fn a_ready_child_ends_the_crash_loop() {
        let mut backoff = CrashLoopBackoff::default();
        assert!(!backoff.ready());
        backoff.died(millis(0));
        backoff.died(millis(600));
        assert!(backoff.ready() && !backoff.ready());
        assert_eq!(
            (backoff.holds_until(millis(700)), backoff.max_parallel(5)),
            (None, 5)
        );
        assert_eq!(backoff.died(millis(800)).unwrap().pause, FIRST);
    }
}
