//! Due times that nobody was there for.

use super::{
    super::plan::{Plan, plan},
    *,
};

const MOST: usize = 100;

fn seconds(due: &[Timestamp]) -> Vec<i64> {
    due.iter().map(|at| at.as_second()).collect()
}

fn planned(missed: Missed, due: i64, now: i64) -> (Vec<i64>, Option<i64>, u64) {
    let schedule = Schedule { missed, ..every(10) };
    let at = |second| Timestamp::from_second(second).unwrap();
    let Plan { due, next, missed } = plan(&schedule, &TimeZone::UTC, at(due), at(now), MOST);
    (seconds(&due), next.map(|next| next.as_second()), missed)
}

#[test]
fn what_is_not_due_waits() {
    for missed in [Missed::Skip, Missed::One, Missed::All] {
        assert_eq!(planned(missed, 1000, 999), (vec![], Some(1000), 0));
        assert_eq!(planned(missed, 1000, 1000), (vec![1000], Some(1010), 0), "on time");
        assert_eq!(planned(missed, 1000, 1009), (vec![1000], Some(1010), 0), "late, and no other has come");
    }
}

#[test]
fn each_policy_makes_something_else_of_them() {
    assert_eq!(planned(Missed::Skip, 1000, 1035), (vec![1030], Some(1040), 3));
    assert_eq!(planned(Missed::One, 1000, 1035), (vec![1030], Some(1040), 3));
    assert_eq!(planned(Missed::All, 1000, 1035), (vec![1000, 1010, 1020, 1030], Some(1040), 0));
}

#[test]
fn skipping_leaves_out_what_is_long_over() {
    let schedule = |missed| Schedule { missed, ..cron("0 3 * * *", "UTC") };
    let (due, next) = (at("2026-11-30T03:00:00Z"), Some(at("2026-12-01T03:00:00Z")));
    let on = |missed, now: &str| plan(&schedule(missed), &TimeZone::UTC, due, at(now), MOST);
    assert_eq!(on(Missed::Skip, "2026-11-30T03:01:00Z"), Plan { due: vec![due], next, missed: 0 });
    assert_eq!(on(Missed::Skip, "2026-11-30T03:01:01Z"), Plan { due: vec![], next, missed: 1 });
    assert_eq!(on(Missed::One, "2026-11-30T23:00:00Z"), Plan { due: vec![due], next, missed: 0 });
}

#[test]
fn not_more_than_so_many_are_made_up_for() {
    let (due, next, missed) = planned(Missed::All, 0, 100_000);
    assert_eq!((due.len(), due[0], missed), (MOST, (10_001 - CATCH_UP as i64) * 10, 10_001 - CATCH_UP as u64));
    assert_eq!(next, Some(due[MOST - 1] + 10), "the rest follows at once");
    // In portions, each once.
    let (mut all, mut at) = (Vec::new(), 0);
    loop {
        let (due, next, _) = planned(Missed::All, at, 100_005);
        all.extend(due);
        at = next.unwrap();
        if at > 100_005 {
            break;
        }
    }
    assert_eq!(all.len(), CATCH_UP);
    assert!(all.windows(2).all(|pair| pair[1] - pair[0] == 10) && all[CATCH_UP - 1] == 100_000);
}

#[test]
fn what_would_expire_at_once_is_not_submitted() {
    let schedule = Schedule { missed: Missed::All, lifetime: Some(Span::secs(15)), ..every(10) };
    let at = |second| Timestamp::from_second(second).unwrap();
    let Plan { due, next, missed } = plan(&schedule, &TimeZone::UTC, at(1000), at(1035), MOST);
    assert_eq!((seconds(&due), next, missed), (vec![1030], Some(at(1040)), 3), "1020 is 15 s old");
    let Plan { due, missed, .. } = plan(&schedule, &TimeZone::UTC, at(1000), at(1034), MOST);
    assert_eq!((seconds(&due), missed), (vec![1020, 1030], 2));
}

#[test]
fn a_long_absence_costs_nothing() {
    let began = std::time::Instant::now();
    let schedule = Schedule { missed: Missed::All, ..cron("* * * * * *", "Europe/Berlin") };
    let (due, now) = (at("2026-01-01T00:00:00Z"), at("2036-01-01T00:00:00Z"));
    let plan = plan(&schedule, &zone("Europe/Berlin"), due, now, CATCH_UP);
    assert_eq!((plan.due.len(), plan.next), (CATCH_UP, Some(at("2036-01-01T00:00:01Z"))));
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
}

#[test]
fn a_due_time_that_the_rules_no_longer_have_is_kept() {
    // As if it had been stored by the rules of another version.
    let schedule = cron("0 3 * * *", "UTC");
    let odd = at("2026-11-30T02:30:00Z");
    let plan = plan(&schedule, &TimeZone::UTC, odd, odd, MOST);
    assert_eq!((plan.due, plan.next), (vec![odd], Some(at("2026-11-30T03:00:00Z"))));
}
