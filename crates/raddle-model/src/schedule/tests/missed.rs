//! Due times that no process was there to fire.

use super::{
    super::plan::{Plan, plan},
    *,
};

const MOST: usize = 100;

fn seconds(due: &[Timestamp]) -> Vec<i64> {
    due.iter().map(|timestamp| timestamp.as_second()).collect()
}

fn planned(missed: MissedPolicy, due: i64, now: i64) -> (Vec<i64>, Option<i64>, u64) {
    let schedule = Schedule {
        missed,
        ..every(10)
    };
    let timestamp = |second| Timestamp::from_second(second).unwrap();
    let Plan { due, next, missed } = plan(
        &schedule,
        &TimeZone::UTC,
        timestamp(due),
        timestamp(now),
        MOST,
    );
    (seconds(&due), next.map(|next| next.as_second()), missed)
}

#[test]
fn fires_nothing_before_it_is_due() {
    for missed in [MissedPolicy::Skip, MissedPolicy::One, MissedPolicy::All] {
        assert_eq!(planned(missed, 1000, 999), (vec![], Some(1000), 0));
        assert_eq!(
            planned(missed, 1000, 1000),
            (vec![1000], Some(1010), 0),
            "on time"
        );
        assert_eq!(
            planned(missed, 1000, 1009),
            (vec![1000], Some(1010), 0),
            "late, and no other has come"
        );
    }
}

#[test]
fn each_policy_treats_missed_times_differently() {
    assert_eq!(
        planned(MissedPolicy::Skip, 1000, 1035),
        (vec![1030], Some(1040), 3)
    );
    assert_eq!(
        planned(MissedPolicy::One, 1000, 1035),
        (vec![1030], Some(1040), 3)
    );
    assert_eq!(
        planned(MissedPolicy::All, 1000, 1035),
        (vec![1000, 1010, 1020, 1030], Some(1040), 0)
    );
}

#[test]
fn skip_drops_late_due_times() {
    let schedule = |missed| Schedule {
        missed,
        ..cron("0 3 * * *", "UTC")
    };
    let (due, next) = (
        timestamp("2026-11-30T03:00:00Z"),
        Some(timestamp("2026-12-01T03:00:00Z")),
    );
    let on = |missed, now: &str| plan(&schedule(missed), &TimeZone::UTC, due, timestamp(now), MOST);
    assert_eq!(
        on(MissedPolicy::Skip, "2026-11-30T03:01:00Z"),
        Plan {
            due: vec![due],
            next,
            missed: 0
        }
    );
    assert_eq!(
        on(MissedPolicy::Skip, "2026-11-30T03:01:01Z"),
        Plan {
            due: vec![],
            next,
            missed: 1
        }
    );
    assert_eq!(
        on(MissedPolicy::One, "2026-11-30T23:00:00Z"),
        Plan {
            due: vec![due],
            next,
            missed: 0
        }
    );
}

#[test]
fn catch_up_is_limited() {
    let (due, next, missed) = planned(MissedPolicy::All, 0, 100_000);
    assert_eq!(
        (due.len(), due[0], missed),
        (
            MOST,
            (10_001 - CATCH_UP as i64) * 10,
            10_001 - CATCH_UP as u64
        )
    );
    assert_eq!(next, Some(due[MOST - 1] + 10), "the rest follows at once");
    // In batches, each due time once.
    let (mut all, mut timestamp) = (Vec::new(), 0);
    loop {
        let (due, next, _) = planned(MissedPolicy::All, timestamp, 100_005);
        all.extend(due);
        timestamp = next.unwrap();
        if timestamp > 100_005 {
            break;
        }
    }
    assert_eq!(all.len(), CATCH_UP);
    assert!(all.windows(2).all(|pair| pair[1] - pair[0] == 10) && all[CATCH_UP - 1] == 100_000);
}

#[test]
fn skips_due_times_that_have_expired() {
    let schedule = Schedule {
        missed: MissedPolicy::All,
        lifetime: Some(HumanDuration::secs(15)),
        ..every(10)
    };
    let timestamp = |second| Timestamp::from_second(second).unwrap();
    let Plan { due, next, missed } = plan(
        &schedule,
        &TimeZone::UTC,
        timestamp(1000),
        timestamp(1035),
        MOST,
    );
    assert_eq!(
        (seconds(&due), next, missed),
        (vec![1030], Some(timestamp(1040)), 3),
        "1020 is 15 s old"
    );
    let Plan { due, missed, .. } = plan(
        &schedule,
        &TimeZone::UTC,
        timestamp(1000),
        timestamp(1034),
        MOST,
    );
    assert_eq!((seconds(&due), missed), (vec![1020, 1030], 2));
}

#[test]
fn planning_after_a_long_outage_is_fast() {
    let began = std::time::Instant::now();
    let schedule = Schedule {
        missed: MissedPolicy::All,
        ..cron("* * * * * *", "Europe/Berlin")
    };
    let (due, now) = (
        timestamp("2026-01-01T00:00:00Z"),
        timestamp("2036-01-01T00:00:00Z"),
    );
    let plan = plan(&schedule, &zone("Europe/Berlin"), due, now, CATCH_UP);
    assert_eq!(
        (plan.due.len(), plan.next),
        (CATCH_UP, Some(timestamp("2036-01-01T00:00:01Z")))
    );
    assert!(
        began.elapsed() < Duration::from_secs(2),
        "{:?}",
        began.elapsed()
    );
}

#[test]
fn stored_due_times_survive_changed_zone_rules() {
    // As if another version of the zone rules had stored it.
    let schedule = cron("0 3 * * *", "UTC");
    let odd = timestamp("2026-11-30T02:30:00Z");
    let plan = plan(&schedule, &TimeZone::UTC, odd, odd, MOST);
    assert_eq!(
        (plan.due, plan.next),
        (vec![odd], Some(timestamp("2026-11-30T03:00:00Z")))
    );
}
