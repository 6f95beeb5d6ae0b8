//! Schedules, from the text to the task.

mod calendar;
mod clocks;
mod entries;
mod missed;
mod texts;

use std::time::Duration;

use jiff::{Timestamp, tz::TimeZone};

use super::*;

fn timestamp(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn zone(name: &str) -> TimeZone {
    known_zone(name).unwrap()
}

fn every(secs: u64) -> Schedule {
    Schedule::every("beat", Duration::from_secs(secs))
        .task(TaskSpec::command(["true"]))
        .unwrap()
}

fn cron(text: &str, zone: &str) -> Schedule {
    Schedule::cron("tick", text)
        .timezone(zone)
        .task(TaskSpec::command(["true"]))
        .unwrap()
}

/// Returns the first due times after `after`, in civil time of the zone.
fn shown(text: &str, name: &str, after: &str, count: usize) -> Vec<String> {
    let (schedule, zone) = (cron(text, name), zone(name));
    let entry = ScheduleEntry::new(schedule, &zone, timestamp(after));
    let show = |timestamp: Timestamp| {
        timestamp
            .to_zoned(zone.clone())
            .strftime("%m-%d %H:%M %:z")
            .to_string()
    };
    entry.upcoming(&zone, count).into_iter().map(show).collect()
}

#[test]
fn tasks_carry_schedule_and_due_time() {
    let mut schedule = every(60);
    schedule.lifetime = Some(HumanDuration::secs(10));
    let due = timestamp("2026-11-30T08:00:00Z");
    let task = schedule.task_for(due);
    assert_eq!(task.name.as_deref(), Some("beat"));
    assert_eq!(task.run_before, Some(timestamp("2026-11-30T08:00:10Z")));
    assert_eq!(task.run_at, None);
    assert_eq!(
        serde_json::json!(task.metadata),
        serde_json::json!({"schedule": "beat", "due": "2026-11-30T08:00:00Z"})
    );
    assert_eq!(task.env["RADDLE_DUE"], "2026-11-30T08:00:00Z");
    assert_eq!(task.env["RADDLE_SCHEDULE"], "beat");
    schedule.task.name = Some("own".into());
    assert_eq!(schedule.task_for(due).name.as_deref(), Some("own"));
}

#[test]
fn jitter_is_deterministic_per_due_time() {
    let mut schedule = every(60);
    schedule.jitter = Some(HumanDuration::secs(30));
    let delays: Vec<Duration> = (0..200)
        .map(|n| {
            let due = Timestamp::from_second(1_800_000_000 + n * 60).unwrap();
            let begins = schedule.task_for(due).run_at.unwrap();
            assert_eq!(schedule.task_for(due).run_at, Some(begins));
            begins.duration_since(due).unsigned_abs()
        })
        .collect();
    assert!(delays.iter().all(|delay| *delay < Duration::from_secs(30)));
    let late = delays
        .iter()
        .filter(|delay| **delay > Duration::from_secs(15))
        .count();
    assert!(
        (60..140).contains(&late),
        "{late} of 200 are in the second half"
    );
    let mut other = schedule.clone();
    other.name = "other".into();
    let due = timestamp("2026-11-30T08:00:00Z");
    assert_ne!(other.task_for(due).run_at, schedule.task_for(due).run_at);
}
