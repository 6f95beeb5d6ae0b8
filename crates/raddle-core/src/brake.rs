//! What is done about workers that die before they are ready: fewer and fewer are launched. A pure decision.

use std::time::Duration;

use crate::ExponentialBackoff;

/// After the first death. A start costs a process, and a log line.
const FIRST: Duration = Duration::from_millis(500);
const LONGEST: Duration = Duration::from_secs(60);
const BACKOFF: ExponentialBackoff = ExponentialBackoff::new(FIRST, LONGEST);

/// Holds launches back.
#[derive(Debug, Default)]
pub struct Brake {
    /// Deaths in a row, where those within one pause are one.
    steps: u32,
    until: Duration,
}

/// A pause that has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// How long it is.
    pub pause: Duration,
    /// How many there were in a row.
    pub number: u32,
}

impl Brake {
    /// A worker has died before it was ready. Returns what that begins, for it to be said once: workers that were launched together die
    /// together.
    pub fn died(&mut self, now: Duration) -> Option<Step> {
        if self.steps > 0 && now < self.until {
            return None;
        }
        self.steps += 1;
        let pause = BACKOFF.pause(self.steps);
        self.until = now + pause;
        Some(Step { pause, number: self.steps })
    }

    /// A worker was ready: whatever was wrong is not any more. Returns whether something was.
    pub fn ready(&mut self) -> bool {
        std::mem::take(self).steps > 0
    }

    /// What they died of may be over: the next is launched at once. If it dies, the pauses go on from where they were.
    pub fn release(&mut self) {
        self.until = Duration::ZERO;
    }

    /// Until when nothing is launched.
    pub fn holds_until(&self, now: Duration) -> Option<Duration> {
        (self.steps > 0 && now < self.until).then_some(self.until)
    }

    /// Whether something was wrong with the last ones that were launched.
    pub fn is_on(&self) -> bool {
        self.steps > 0
    }

    /// How many may be starting at a time: one, to see whether it is still so.
    pub fn max_parallel(&self, allowed: usize) -> usize {
        if self.steps > 0 { allowed.min(1) } else { allowed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn pauses_double_and_are_said_once() {
        let mut brake = Brake::default();
        assert_eq!((brake.holds_until(at(0)), brake.max_parallel(5)), (None, 5));
        assert_eq!(brake.died(at(100)), Some(Step { pause: at(500), number: 1 }));
        assert_eq!(brake.died(at(101)), None, "it was launched with the first");
        assert_eq!(brake.holds_until(at(101)), Some(at(600)));
        assert_eq!((brake.holds_until(at(600)), brake.max_parallel(5)), (None, 1));
        assert_eq!(brake.died(at(700)), Some(Step { pause: at(1000), number: 2 }));
        let mut now = at(1700);
        for _ in 0..40 {
            now += brake.died(now).unwrap().pause;
        }
        assert_eq!(brake.died(now).unwrap().pause, LONGEST);
    }

    #[test]
    fn one_that_gets_ready_ends_it() {
        let mut brake = Brake::default();
        assert!(!brake.ready());
        brake.died(at(0));
        brake.died(at(600));
        assert!(brake.ready() && !brake.ready());
        assert_eq!((brake.holds_until(at(700)), brake.max_parallel(5)), (None, 5));
        assert_eq!(brake.died(at(800)).unwrap().pause, FIRST);
    }
}
