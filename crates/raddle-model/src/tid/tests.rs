//! The format of ids, and that they strictly increase.

use std::{collections::BTreeSet, sync::Mutex, thread};

use proptest::prelude::*;

use super::*;
use crate::arbitrary;

/// Readings of a wall clock that may stall or go back.
fn clock() -> impl Strategy<Value = Vec<u64>> {
    let day = 86_400_000_000_000;
    let around = 1_790_000_000_000_000_000u64;
    proptest::collection::vec(
        prop_oneof![
            Just(0),
            Just(around),
            around - day..around + day,
            around..around + 10_000,
            any::<u32>().prop_map(u64::from)
        ],
        1..200,
    )
}

proptest! {
    #[test]
    fn ids_strictly_increase_whatever_the_clock_does(times in clock()) {
        let mut ids = TidClock::resume(0);
        let mut last = 0;
        for now in times {
            let id = ids.next(now).as_u64();
            prop_assert!(id > last, "{id} after {last} at {now}");
            prop_assert_eq!(ids.last(), id);
            last = id;
        }
    }

    #[test]
    fn ids_strictly_increase_across_restarts(runs in proptest::collection::vec(clock(), 1..8)) {
        let mut stored = 0;
        for times in runs {
            let mut ids = TidClock::resume(stored);
            for now in times {
                prop_assert!(ids.next(now).as_u64() > stored);
                stored = ids.last();
            }
        }
    }

    #[test]
    fn every_generated_id_is_well_formed(last in 0..=i64::MAX as u64 - 1, now: u64) {
        let id = TidClock::resume(last).next(now);
        prop_assert_eq!(id.to_string().len(), 19);
        prop_assert_eq!(Tid::from_u64(id.as_u64()), Some(id));
        prop_assert_eq!(u64::try_from(id.as_i64()).ok(), Some(id.as_u64()));
    }

    #[test]
    fn an_id_holds_its_creation_time(now in 1_000_000_000_004_096..=i64::MAX as u64 / 1000) {
        let now = now * 1000;
        let id = TidClock::resume(0).next(now);
        prop_assert!(now - id.unix_nanos() < 4096);
    }

    #[test]
    fn printing_and_parsing_are_inverse(id in arbitrary::tid()) {
        let text = id.to_string();
        prop_assert_eq!(text.parse::<Tid>(), Ok(id));
        prop_assert_eq!(text.parse::<TidArg>(), Ok(TidArg::Full(id)));
        prop_assert!(text.ends_with(&id.short().to_string()));
        prop_assert_eq!(id.short().to_string().parse::<TidArg>(), Ok(TidArg::Short(id.short())));
    }

    #[test]
    fn json_ids_are_strings(id in arbitrary::tid()) {
        let json = serde_json::to_string(&id).expect("a string");
        prop_assert_eq!(&json, &format!("\"{id}\""));
        prop_assert_eq!(serde_json::from_str::<Tid>(&json).expect("an id"), id);
        prop_assert!(serde_json::from_str::<Tid>(&id.to_string()).is_err(), "a number has lost digits already");
    }

    #[test]
    fn accepts_only_19_or_10_digits(text in "[ +0-9-]{0,21}|[0-9]{8,21}|[٠-٩]{5,19}|\\PC*") {
        let digits = text.bytes().all(|b| b.is_ascii_digit());
        let in_range = text.parse().is_ok_and(|raw: u64| Tid::from_u64(raw).is_some());
        prop_assert_eq!(text.parse::<Tid>().is_ok(), digits && text.len() == 19 && in_range);
        let taken = digits && (text.len() == 10 || text.len() == 19 && in_range);
        prop_assert_eq!(text.parse::<TidArg>().is_ok(), taken);
    }
}

#[test]
fn ids_strictly_increase_across_threads() {
    let clock = Mutex::new(TidClock::resume(0));
    let each = 2_000;
    let generate = |_| {
        let mut ids = Vec::with_capacity(each);
        for i in 0..each as u64 {
            // Each thread has its own clock, which stalls for long periods.
            ids.push(
                clock
                    .lock()
                    .unwrap()
                    .next(1_790_000_000_000_000_000 + i / 500),
            );
        }
        ids
    };
    let all: Vec<Vec<Tid>> = thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|n| scope.spawn(move || generate(n))).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    assert!(all.iter().all(|ids| ids.is_sorted_by(|a, b| a < b)));
    assert_eq!(
        all.iter().flatten().collect::<BTreeSet<_>>().len(),
        4 * each
    );
}

#[test]
fn refuses_invalid_ids_with_a_helpful_message() {
    let bad = [
        "",
        "0",
        "123456789",
        "12345678901",
        "179000000000000000",
        "17900000000000000000",
        "9999999999999999999",
        "0999999999999999999",
        "+790000000000000000",
        "-790000000000000000",
        " 790000000000000000",
        "179000000000000000 ",
        "179_000_000_000_000",
        "0x790000000000000000",
        "179000000000000000\n",
        "179000000000000000\0",
        "١٧٩٠٠٠٠٠٠٠",
        "１７９０００",
        "T1790000000000000000",
        "1.79000000000000000",
        "1e18",
    ];
    for text in bad {
        let error = text.parse::<TidArg>().expect_err(text).to_string();
        assert!(
            error.contains(text) && error.contains("19 digits"),
            "{error}"
        );
        assert!(text.parse::<Tid>().is_err(), "{text}");
    }
}

#[test]
fn accepts_exactly_the_range_of_ids() {
    for raw in [10u64.pow(18), i64::MAX as u64] {
        assert_eq!(raw.to_string().parse::<Tid>().map(Tid::as_u64), Ok(raw));
    }
    for raw in [0, 10u64.pow(18) - 1, i64::MAX as u64 + 1, u64::MAX] {
        assert_eq!(Tid::from_u64(raw), None);
    }
}

#[test]
fn a_damaged_counter_does_not_panic() {
    let mut ids = TidClock::resume(u64::MAX);
    assert_eq!(ids.next(u64::MAX).as_u64(), i64::MAX as u64);
}
