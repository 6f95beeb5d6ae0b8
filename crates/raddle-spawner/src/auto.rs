//! `AutoSizer`: the size of an automatic warm pool, the smallest for which an arriving task finds
//! an idle worker as often as `hit_target` says. Pure.
//!
//! A claimed worker is replaced at once, and the replacement takes the start-up time. So the number
//! of workers that are missing when a task arrives is the number of tasks that arrived within the
//! last start-up time. For independent arrivals that number is Poisson-distributed with mean `rate
//! × start-up time`, and a pool of `k` is empty with the probability of `k` or more.

use std::time::Duration;

/// Time constants of the rate estimate for a growing and a shrinking load.
const GROW: Duration = Duration::from_secs(2);
const SHRINK: Duration = Duration::from_secs(60);
/// Arrivals within this time are one sample.
const WINDOW: Duration = Duration::from_millis(200);
/// How long a smaller pool must suffice before the pool shrinks.
const HOLD: Duration = Duration::from_secs(30);
/// Start-up time before the first one is measured.
const DEFAULT_START: Duration = Duration::from_millis(200);
/// Weight of a new start-up time that is shorter. Slow starts are rare, and tasks wait for those.
const START_WEIGHT: f64 = 0.01;
/// The part of the allowed misses that the model may use. The rest covers what it leaves out:
/// arrivals are not quite independent, and replacing a worker takes a moment.
const PLANNED_MISSES: f64 = 0.5;

#[derive(Debug)]
pub(super) struct AutoSizer {
    hit_target: f64,
    max_size: u32,
    /// Tasks per second: short-term and long-term averages.
    fast: f64,
    slow: f64,
    start_secs: f64,
    /// Arrivals since the window started.
    arrived: u64,
    window_started: Duration,
    size: u32,
    /// Since when a smaller pool would suffice.
    smaller_since: Option<Duration>,
    /// The largest size that was needed since then.
    needed_since: u32,
}

impl AutoSizer {
    pub(super) fn new(hit_target: f64, max_size: u32) -> Self {
        Self {
            hit_target,
            max_size: max_size.max(1),
            fast: 0.0,
            slow: 0.0,
            start_secs: DEFAULT_START.as_secs_f64(),
            arrived: 0,
            window_started: Duration::ZERO,
            size: 1,
            smaller_since: None,
            needed_since: 0,
        }
    }

    /// Records arrivals.
    pub(super) fn record_arrivals(&mut self, tasks: u64) {
        self.arrived += tasks;
    }

    /// Records a start-up time.
    pub(super) fn record_start(&mut self, duration: Duration) {
        let duration = duration.as_secs_f64();
        // A slow start counts in full at once, because the pool must cover it.
        self.start_secs = if duration > self.start_secs {
            duration
        } else {
            self.start_secs + START_WEIGHT * (duration - self.start_secs)
        };
    }

    /// Returns the pool size for now.
    pub(super) fn size(&mut self, now: Duration) -> u32 {
        let window = now.saturating_sub(self.window_started);
        if window >= WINDOW {
            let seen = self.arrived as f64 / window.as_secs_f64();
            (self.arrived, self.window_started) = (0, now);
            let follow = |rate: f64, over: Duration| {
                rate + (seen - rate) * (1.0 - (-window.as_secs_f64() / over.as_secs_f64()).exp())
            };
            self.fast = follow(self.fast, GROW);
            self.slow = follow(self.slow, SHRINK);
        }
        let rate = self.fast.max(self.slow);
        let needed = smallest_pool(
            rate * self.start_secs,
            PLANNED_MISSES * (1.0 - self.hit_target),
            self.max_size,
        );
        if needed >= self.size {
            (self.size, self.smaller_since) = (needed, None);
            return self.size;
        }
        match self.smaller_since {
            None => (self.smaller_since, self.needed_since) = (Some(now), needed),
            Some(since) if now.saturating_sub(since) >= HOLD => {
                // Shrink to the largest size that was needed meanwhile.
                (self.size, self.smaller_since) = (self.needed_since.max(needed), None);
            }
            Some(_) => self.needed_since = self.needed_since.max(needed),
        }
        self.size
    }
}

/// The smallest pool that is empty with at most probability `miss`, if `missing` workers are being
/// replaced on average.
fn smallest_pool(missing: f64, miss: f64, max_size: u32) -> u32 {
    let mut term = (-missing).exp();
    if term == 0.0 {
        // Too many terms to add: far above the mean, the tail of a normal distribution is close
        // enough.
        return ((missing + 6.0 * missing.sqrt()).ceil() as u32).min(max_size);
    }
    let mut below = term;
    let mut size = 1;
    while 1.0 - below > miss && size < max_size {
        term *= missing / f64::from(size);
        below += term;
        size += 1;
    }
    size
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_millis(5);

    /// A deterministic pseudo-random generator.
    struct TestArrivals(u64);

    impl TestArrivals {
        fn roll(&mut self) -> f64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 >> 11) as f64 / (1u64 << 53) as f64
        }

        /// The number of arrivals within one step.
        fn arrivals(&mut self, rate: f64) -> u32 {
            let (mut left, mut count) = (self.roll(), 0);
            let mean = rate * STEP.as_secs_f64();
            let mut term = (-mean).exp();
            while left > term {
                left -= term;
                count += 1;
                term *= mean / f64::from(count);
            }
            count
        }
    }

    #[derive(Default)]
    struct DemandSample {
        hits: u32,
        arrivals: u32,
        changes: u32,
        largest: u32,
        last: u32,
    }

    /// Simulates a pool under a load, and measures from second `from` on.
    fn simulate(rate: impl Fn(f64) -> f64, start: Duration, secs: u64, from: u64) -> DemandSample {
        let (mut auto, mut dice) = (
            AutoSizer::new(0.99, 1000),
            TestArrivals(0x9E37_79B9_7F4A_7C15),
        );
        let (mut idle, mut ready_at, mut seen) =
            (1u32, Vec::<Duration>::new(), DemandSample::default());
        let mut now = Duration::ZERO;
        while now < Duration::from_secs(secs) {
            now += STEP;
            let before = ready_at.len();
            ready_at.retain(|at| *at > now);
            (before > ready_at.len()).then(|| auto.record_start(start));
            idle += (before - ready_at.len()) as u32;
            let arrivals = dice.arrivals(rate(now.as_secs_f64()));
            auto.record_arrivals(arrivals.into());
            let hits = arrivals.min(idle);
            idle -= hits;
            let size = auto.size(now);
            let missing = size.saturating_sub(idle + ready_at.len() as u32);
            ready_at.extend((0..missing).map(|_| now + start));
            if now >= Duration::from_secs(from) {
                seen.arrivals += arrivals;
                seen.hits += hits;
                seen.changes += u32::from(seen.last != 0 && seen.last != size);
                seen.largest = seen.largest.max(size);
            }
            seen.last = size;
        }
        seen
    }

    #[test]
    fn the_pool_is_as_small_as_the_miss_rate_allows() {
        assert_eq!(smallest_pool(0.0, 0.01, 100), 1);
        // From the table of the distribution: P(N ≥ 5) = 0.0037 and P(N ≥ 4) = 0.019 for mean 1.
        assert_eq!(smallest_pool(1.0, 0.01, 100), 5);
        assert_eq!(smallest_pool(10.0, 0.01, 100), 19);
        assert_eq!(smallest_pool(10.0, 0.01, 7), 7);
        assert_eq!(smallest_pool(1e9, 0.01, 50), 50);
        for mean in 1..200 {
            let (size, more) = (
                smallest_pool(mean.into(), 0.01, 1000),
                smallest_pool(f64::from(mean) + 0.5, 0.01, 1000),
            );
            assert!(size > mean && more >= size, "{mean}: {size}, {more}");
        }
    }

    #[test]
    fn a_steady_load_finds_idle_workers_and_a_stable_pool() {
        for (rate, millis) in [(2.0, 100), (20.0, 100), (100.0, 50), (50.0, 1000)] {
            let seen = simulate(|_| rate, Duration::from_millis(millis), 300, 30);
            let ratio = f64::from(seen.hits) / f64::from(seen.arrivals);
            assert!(ratio >= 0.99, "{rate}/s, {millis} ms: {ratio}");
            assert!(
                seen.changes <= 40,
                "{rate}/s: {} changes in 270 s",
                seen.changes
            );
            let mean = rate * Duration::from_millis(millis).as_secs_f64();
            assert!(
                f64::from(seen.largest) <= 3.0 * mean + 8.0,
                "{rate}/s: {}",
                seen.largest
            );
        }
    }

    #[test]
    fn grows_fast_and_shrinks_slowly() {
        let start = Duration::from_millis(100);
        // The load jumps at second 100. By second 105 the pool has grown.
        let flood = |secs: f64| if secs < 100.0 { 1.0 } else { 100.0 };
        let seen = simulate(flood, start, 160, 105);
        assert!(f64::from(seen.hits) / f64::from(seen.arrivals) >= 0.99);
        // The load drops at second 60. The pool shrinks over minutes, down to its first size.
        let ebb = |secs: f64| if secs < 60.0 { 100.0 } else { 0.5 };
        let (soon, late) = (simulate(ebb, start, 75, 60), simulate(ebb, start, 600, 590));
        assert!(soon.last >= 10, "{}", soon.last);
        assert!(late.last <= 3, "{}", late.last);
    }
}
