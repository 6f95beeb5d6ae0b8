//! Peak EWMA of a worker's call latency: an exponentially weighted moving average that follows a
//! new peak at once and falls slowly.

use std::time::Duration;

use tokio::time::Instant;

/// After this long, the past weighs 1/e.
const TIME_CONSTANT: Duration = Duration::from_secs(10);
/// Lower bound. Without it, the estimate of a worker without calls would fade to zero, and its load
/// would not count.
const MIN_NANOS: f64 = 1_000.0;

/// A latency estimate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Latency {
    nanos: f64,
    at: Instant,
}

impl Latency {
    /// The estimate after a call that took `took`. The first call sets it.
    pub(super) fn after(known: Option<Self>, took: Duration, now: Instant) -> Self {
        let took = took.as_nanos() as f64;
        let nanos = match known {
            None => took,
            Some(known) => {
                let weight = known.past_weight(now);
                took.max(known.nanos * weight + took * (1.0 - weight))
            }
        };
        Self { nanos, at: now }
    }

    /// The estimate in nanoseconds. It fades without calls, so that a worker that was slow is tried
    /// again.
    pub(super) fn nanos(self, now: Instant) -> f64 {
        (self.nanos * self.past_weight(now)).max(MIN_NANOS)
    }

    /// Remaining weight of the past.
    fn past_weight(self, now: Instant) -> f64 {
        let passed = now.saturating_duration_since(self.at);
        (-passed.as_secs_f64() / TIME_CONSTANT.as_secs_f64()).exp()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MILLI: f64 = 1_000_000.0;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn peak_counts_at_once_and_fades() {
        let start = Instant::now();
        let calm = Latency::after(None, ms(10), start);
        assert_eq!(calm.nanos(start), 10.0 * MILLI);
        let peak = Latency::after(Some(calm), ms(500), start);
        assert_eq!(peak.nanos(start), 500.0 * MILLI);
        let later = start + TIME_CONSTANT;
        let again = Latency::after(Some(peak), ms(10), later).nanos(later);
        assert!((180.0 * MILLI..200.0 * MILLI).contains(&again), "{again}");
        assert!(peak.nanos(start + 3 * TIME_CONSTANT) < 25.0 * MILLI);
        assert_eq!(peak.nanos(start + 100 * TIME_CONSTANT), MIN_NANOS);
    }

    proptest! {
        #[test]
        fn stays_between_the_last_and_the_worst_call(steps in prop::collection::vec((0_u64..5_000, 0_u64..60_000), 1..30)) {
            let (mut now, mut known, mut worst) = (Instant::now(), None, 0.0_f64);
            for (took, passed) in steps {
                now += ms(passed);
                let latency = Latency::after(known, ms(took), now);
                worst = worst.max(took as f64 * MILLI);
                prop_assert!(latency.nanos(now) >= took as f64 * MILLI);
                prop_assert!(latency.nanos(now) <= worst.max(MIN_NANOS) * 1.000_001);
                known = Some(latency);
            }
        }
    }
}
