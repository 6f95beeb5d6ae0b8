//! The size of a warm pool that nobody has stated: the smallest for which an arriving task finds an idle worker as often as it should. A pure
//! decision.
//!
//! A worker that is taken is replaced at once, and its replacement needs the start-up time. So the number of workers that are missing from
//! the pool when a task arrives is the number of tasks that arrived within the last start-up time. Where those come independently of each
//! other, that is Poisson-distributed around `rate × start-up time`, and a pool of `k` is empty with the probability that there were `k` or
//! more.

use std::time::Duration;

/// How fast the estimate follows a load that grows, and one that shrinks.
const UP: Duration = Duration::from_secs(2);
const DOWN: Duration = Duration::from_secs(60);
/// Arrivals within this are counted as one observation.
const WINDOW: Duration = Duration::from_millis(200);
/// A smaller pool must have been enough for so long before a worker is not replaced.
const HOLD: Duration = Duration::from_secs(30);
/// What is assumed of a start-up that nobody has seen yet.
const FIRST_START: Duration = Duration::from_millis(200);
/// How much of a newly seen start-up time counts. Starts that take long come rarely, and it is those that a task has to wait for.
const START_WEIGHT: f64 = 0.01;
/// The share of the misses that are allowed which is planned for. The rest is for what the model leaves out: that arrivals are not quite
/// independent, and that a worker that was taken is not replaced in the same moment.
const PLANNED_MISSES: f64 = 0.5;

#[derive(Debug)]
pub(super) struct AutoSizer {
    hit_target: f64,
    ceiling: u32,
    /// Tasks in a second, lately and in the longer run.
    fast: f64,
    slow: f64,
    start_secs: f64,
    /// Arrivals since this window began.
    arrived: u64,
    window_began: Duration,
    size: u32,
    /// Since when a smaller pool would do.
    smaller_since: Option<Duration>,
    /// The largest that was needed since then.
    needed_since: u32,
}

impl AutoSizer {
    pub(super) fn new(hit_target: f64, ceiling: u32) -> Self {
        Self {
            hit_target,
            ceiling: ceiling.max(1),
            fast: 0.0,
            slow: 0.0,
            start_secs: FIRST_START.as_secs_f64(),
            arrived: 0,
            window_began: Duration::ZERO,
            size: 1,
            smaller_since: None,
            needed_since: 0,
        }
    }

    /// Tasks have arrived.
    pub(super) fn arrived(&mut self, tasks: u64) {
        self.arrived += tasks;
    }

    /// A worker was ready so long after it was launched.
    pub(super) fn started(&mut self, took: Duration) {
        let took = took.as_secs_f64();
        // A slow start counts at once: the pool has to do for it.
        self.start_secs = if took > self.start_secs {
            took
        } else {
            self.start_secs + START_WEIGHT * (took - self.start_secs)
        };
    }

    /// The size to keep from now on.
    pub(super) fn size(&mut self, now: Duration) -> u32 {
        let window = now.saturating_sub(self.window_began);
        if window >= WINDOW {
            let seen = self.arrived as f64 / window.as_secs_f64();
            (self.arrived, self.window_began) = (0, now);
            let follow = |rate: f64, over: Duration| {
                rate + (seen - rate) * (1.0 - (-window.as_secs_f64() / over.as_secs_f64()).exp())
            };
            self.fast = follow(self.fast, UP);
            self.slow = follow(self.slow, DOWN);
        }
        let rate = self.fast.max(self.slow);
        let needed = pool_for(
            rate * self.start_secs,
            PLANNED_MISSES * (1.0 - self.hit_target),
            self.ceiling,
        );
        if needed >= self.size {
            (self.size, self.smaller_since) = (needed, None);
            return self.size;
        }
        match self.smaller_since {
            None => (self.smaller_since, self.needed_since) = (Some(now), needed),
            Some(since) if now.saturating_sub(since) >= HOLD => {
                // Down to what was needed at most meanwhile, and no further.
                (self.size, self.smaller_since) = (self.needed_since.max(needed), None);
            }
            Some(_) => self.needed_since = self.needed_since.max(needed),
        }
        self.size
    }
}

/// The smallest pool that is empty no more often than `miss`, when `missing` workers are being replaced on average.
fn pool_for(missing: f64, miss: f64, ceiling: u32) -> u32 {
    let mut term = (-missing).exp();
    if term == 0.0 {
        // Too many to be added up: so far above the mean the tail of a normal distribution is as good.
        return ((missing + 6.0 * missing.sqrt()).ceil() as u32).min(ceiling);
    }
    let mut below = term;
    let mut size = 1;
    while 1.0 - below > miss && size < ceiling {
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

    /// A generator that needs no crate: the tests want arrivals that look random and are the same each time.
    struct TestArrivals(u64);

    impl TestArrivals {
        fn roll(&mut self) -> f64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 >> 11) as f64 / (1u64 << 53) as f64
        }

        /// How many arrive within one step.
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

    /// A pool under a load, from the moment `from` on.
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
            (before > ready_at.len()).then(|| auto.started(start));
            idle += (before - ready_at.len()) as u32;
            let arrivals = dice.arrivals(rate(now.as_secs_f64()));
            auto.arrived(arrivals.into());
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
    fn a_pool_is_empty_as_seldom_as_it_should_be() {
        assert_eq!(pool_for(0.0, 0.01, 100), 1);
        // By the table of the distribution: P(N ≥ 5) = 0.0037 and P(N ≥ 4) = 0.019 around 1.
        assert_eq!(pool_for(1.0, 0.01, 100), 5);
        assert_eq!(pool_for(10.0, 0.01, 100), 19);
        assert_eq!(pool_for(10.0, 0.01, 7), 7);
        assert_eq!(pool_for(1e9, 0.01, 50), 50);
        for mean in 1..200 {
            let (size, more) = (
                pool_for(mean.into(), 0.01, 1000),
                pool_for(f64::from(mean) + 0.5, 0.01, 1000),
            );
            assert!(size > mean && more >= size, "{mean}: {size}, {more}");
        }
    }

    #[test]
    fn a_steady_load_finds_a_worker_and_the_pool_does_not_flap() {
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
    fn it_grows_fast_and_shrinks_slowly() {
        let start = Duration::from_millis(100);
        // A flood from the 100th second on; by the 105th it is met.
        let flood = |secs: f64| if secs < 100.0 { 1.0 } else { 100.0 };
        let seen = simulate(flood, start, 160, 105);
        assert!(f64::from(seen.hits) / f64::from(seen.arrivals) >= 0.99);
        // It is over at the 60th second; a minute and a half later the pool is smaller, and in the end as small as it was.
        let ebb = |secs: f64| if secs < 60.0 { 100.0 } else { 0.5 };
        let (soon, late) = (simulate(ebb, start, 75, 60), simulate(ebb, start, 600, 590));
        assert!(soon.last >= 10, "{}", soon.last);
        assert!(late.last <= 3, "{}", late.last);
    }
}
