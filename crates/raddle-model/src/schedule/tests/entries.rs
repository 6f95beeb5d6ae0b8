//! Transitions of a schedule entry.

use super::*;

const NOW: &str = "2026-11-30T08:00:00Z";

fn entry() -> ScheduleEntry {
    ScheduleEntry::new(every(60), &TimeZone::UTC, timestamp(NOW))
}

#[test]
fn intervals_start_after_one_period() {
    assert_eq!(entry().next, Some(timestamp("2026-11-30T08:01:00Z")));
    let started = |start: &str| {
        ScheduleEntry::new(
            Schedule {
                start: Some(timestamp(start)),
                ..every(60)
            },
            &TimeZone::UTC,
            timestamp(NOW),
        )
        .next
    };
    assert_eq!(
        started("2026-12-24T00:00:00Z"),
        Some(timestamp("2026-12-24T00:00:00Z"))
    );
    assert_eq!(
        started("2026-11-30T07:59:30Z"),
        Some(timestamp("2026-11-30T08:00:30Z")),
        "in step with its start"
    );
    assert_eq!(started(NOW), Some(timestamp("2026-11-30T08:01:00Z")));
}

#[test]
fn cron_starts_at_its_start_time() {
    let entry = ScheduleEntry::new(
        Schedule {
            start: Some(timestamp("2026-12-24T03:00:00Z")),
            ..cron("0 3 * * *", "UTC")
        },
        &TimeZone::UTC,
        timestamp(NOW),
    );
    assert_eq!(entry.next, Some(timestamp("2026-12-24T03:00:00Z")));
}

#[test]
fn firing_takes_a_due_time_and_stores_the_next() {
    let before = entry();
    assert_eq!(
        before.fire(&TimeZone::UTC, timestamp("2026-11-30T08:00:59.9Z"), 10),
        None
    );
    let firing = before
        .fire(&TimeZone::UTC, timestamp("2026-11-30T08:01:00.1Z"), 10)
        .unwrap();
    assert_eq!(
        (firing.due.as_slice(), firing.missed),
        (&[timestamp("2026-11-30T08:01:00Z")][..], 0)
    );
    let ScheduleEntry {
        next,
        last,
        fired,
        missed,
        ..
    } = firing.entry;
    assert_eq!(
        (next, last),
        (
            Some(timestamp("2026-11-30T08:02:00Z")),
            Some(timestamp("2026-11-30T08:01:00Z"))
        )
    );
    assert_eq!((fired, missed), (1, 0));
}

#[test]
fn refused_firings_count_as_missed() {
    let before = entry()
        .fire(&TimeZone::UTC, timestamp("2026-11-30T08:01:00.1Z"), 10)
        .unwrap()
        .entry;
    let firing = before
        .fire(&TimeZone::UTC, timestamp("2026-11-30T08:04:30Z"), 10)
        .unwrap();
    assert_eq!(
        (firing.due.len(), firing.missed),
        (1, 2),
        "one stands for three"
    );
    let refused = before.refused(&firing);
    assert_eq!(
        refused,
        ScheduleEntry {
            next: Some(timestamp("2026-11-30T08:05:00Z")),
            missed: 3,
            ..before
        }
    );
}

#[test]
fn resuming_skips_due_times_of_the_pause() {
    let paused = entry().paused().unwrap();
    assert_eq!((paused.due(), paused.paused()), (None, None));
    assert_eq!(
        paused.fire(&TimeZone::UTC, timestamp("2026-11-30T09:00:00Z"), 10),
        None
    );
    let resumed = paused
        .resumed(&TimeZone::UTC, timestamp("2026-11-30T08:10:30Z"))
        .unwrap();
    assert_eq!(
        (resumed.due(), resumed.missed),
        (Some(timestamp("2026-11-30T08:11:00Z")), 0)
    );
    assert_eq!(resumed.resumed(&TimeZone::UTC, timestamp(NOW)), None);
    assert_eq!(
        entry()
            .paused()
            .unwrap()
            .resumed(&TimeZone::UTC, timestamp(NOW))
            .unwrap(),
        entry()
    );
}

#[test]
fn rewriting_continues_an_unchanged_series() {
    let later = timestamp("2026-11-30T08:00:30Z");
    let before = entry();
    assert_eq!(
        before.rewritten(every(60), &TimeZone::UTC, later),
        None,
        "it says the same"
    );
    let mut other = every(60);
    other.task.priority = 9;
    let rewritten = before
        .rewritten(other.clone(), &TimeZone::UTC, later)
        .unwrap();
    assert_eq!(
        (rewritten.next, &rewritten.schedule),
        (before.next, &other),
        "in step"
    );
    let faster = before.rewritten(every(10), &TimeZone::UTC, later).unwrap();
    assert_eq!(faster.next, Some(timestamp("2026-11-30T08:00:40Z")));
    let paused = before
        .paused()
        .unwrap()
        .rewritten(every(10), &TimeZone::UTC, later)
        .unwrap();
    assert!(paused.paused, "a pause lasts until a user ends it");
}

#[test]
fn entries_round_trip() {
    let mut entry = entry()
        .fire(&TimeZone::UTC, timestamp("2026-11-30T08:05:00Z"), 10)
        .unwrap()
        .entry;
    entry.paused = true;
    let json = serde_json::to_string(&entry).unwrap();
    assert_eq!(serde_json::from_str::<ScheduleEntry>(&json).unwrap(), entry);
}
