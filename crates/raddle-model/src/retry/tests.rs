//! Pauses stay within their bounds, grow, and are spread by jitter.

use proptest::prelude::*;

use super::*;
use crate::arbitrary;

const NANO: Duration = Duration::from_nanos(1);

fn without_jitter(retry: RetryPolicy) -> RetryPolicy {
    RetryPolicy {
        jitter: 0.0,
        ..retry
    }
}

proptest! {
    #[test]
    fn pauses_stay_between_max_and_the_jitter_bound(
        retry in arbitrary::retry(), failures: u32, tid in arbitrary::tid(),
    ) {
        let pause = retry.pause(failures, tid);
        let full = without_jitter(retry.clone()).pause(failures, tid);
        // Nanoseconds beyond `f64` precision are rounded, in proportion to the pause.
        let slack = NANO + full.mul_f64(1e-12);
        prop_assert!(full <= retry.max.0 + slack);
        prop_assert!(pause <= full + slack);
        prop_assert!(pause + slack >= full.mul_f64(1.0 - retry.jitter));
        prop_assert_eq!(pause, retry.pause(failures, tid), "the same history gives the same plan");
    }

    #[test]
    fn without_jitter_pauses_never_shrink(retry in arbitrary::retry(), n in 0..200u32, tid in arbitrary::tid()) {
        let retry = without_jitter(retry);
        prop_assert!(retry.pause(n, tid) <= retry.pause(n + 1, tid));
    }

    #[test]
    fn without_jitter_the_first_pause_is_base_or_max(retry in arbitrary::retry(), tid in arbitrary::tid()) {
        let retry = without_jitter(retry);
        let first = retry.base.0.min(retry.max.0);
        prop_assert!(retry.pause(1, tid).abs_diff(first) <= NANO + first.mul_f64(1e-12));
    }

    #[test]
    fn arbitrary_policies_do_not_panic(
        backoff in arbitrary::backoff(), base: Duration, max: Duration, jitter: f64, n: u32, tid in arbitrary::tid(),
    ) {
        let retry = RetryPolicy { attempts: n, backoff, base: HumanDuration(base), max: HumanDuration(max), jitter };
        retry.pause(n, tid);
    }
}

#[test]
fn each_backoff_curve_grows_as_documented() {
    let tid = Tid::from_u64(1_790_000_000_000_000_000).unwrap();
    let pauses = |backoff| {
        let retry = RetryPolicy {
            backoff,
            base: HumanDuration::secs(2),
            max: HumanDuration::secs(20),
            jitter: 0.0,
            ..RetryPolicy::default()
        };
        (1..=6)
            .map(|n| retry.pause(n, tid).as_secs())
            .collect::<Vec<_>>()
    };
    assert_eq!(pauses(BackoffCurve::Constant), [2, 2, 2, 2, 2, 2]);
    assert_eq!(pauses(BackoffCurve::Linear), [2, 4, 6, 8, 10, 12]);
    assert_eq!(pauses(BackoffCurve::Exponential), [2, 4, 8, 16, 20, 20]);
}

#[test]
fn jitter_spreads_tasks_that_failed_together() {
    let retry = RetryPolicy {
        base: HumanDuration::secs(100),
        jitter: 0.5,
        ..RetryPolicy::default()
    };
    let pauses: Vec<_> = (0..1_000u64)
        .map(|n| {
            retry
                .pause(1, Tid::from_u64(1_790_000_000_000_000_000 + n).unwrap())
                .as_secs_f64()
        })
        .collect();
    let in_band = |low: f64, high: f64| pauses.iter().filter(|p| (low..high).contains(*p)).count();
    assert_eq!(in_band(50.0, 100.001), 1_000);
    // Five bands of ten seconds: about 200 tasks each, although the ids are consecutive.
    for band in 0..5 {
        let low = 50.0 + 10.0 * f64::from(band);
        assert!(
            (130..270).contains(&in_band(low, low + 10.0)),
            "band {band}: {}",
            in_band(low, low + 10.0)
        );
    }
}
