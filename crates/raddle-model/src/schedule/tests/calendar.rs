//! Days and times without clock changes.

use super::{super::series::Series, *};

fn utc(text: &str, after: &str, count: usize) -> Vec<String> {
    shown(text, "UTC", after, count)
        .into_iter()
        .map(|shown| shown.trim_end_matches(" +00:00").to_owned())
        .collect()
}

#[test]
fn matches_common_expressions() {
    let from = "2026-11-30T08:07:30.5Z"; // a Monday
    assert_eq!(
        utc("*/5 * * * *", from, 3),
        ["11-30 08:10", "11-30 08:15", "11-30 08:20"]
    );
    assert_eq!(
        utc("0 3 * * 1-5", from, 5),
        [
            "12-01 03:00",
            "12-02 03:00",
            "12-03 03:00",
            "12-04 03:00",
            "12-07 03:00"
        ]
    );
    assert_eq!(utc("@hourly", from, 2), ["11-30 09:00", "11-30 10:00"]);
    assert_eq!(utc("@weekly", from, 2), ["12-06 00:00", "12-13 00:00"]);
    assert_eq!(utc("@monthly", from, 2), ["12-01 00:00", "01-01 00:00"]);
    assert_eq!(
        utc("30 9,17 * * MON", from, 3),
        ["11-30 09:30", "11-30 17:30", "12-07 09:30"]
    );
    assert_eq!(utc("0 12 * * 7", from, 1), utc("0 12 * * 0", from, 1));
    assert_eq!(
        utc("7/20 8 * * *", from, 3),
        ["11-30 08:27", "11-30 08:47", "12-01 08:07"]
    );
}

#[test]
fn due_times_are_strictly_later() {
    assert_eq!(utc("7 8 * * *", "2026-11-30T08:07:00Z", 1), ["12-01 08:07"]);
    assert_eq!(
        utc("7 8 * * *", "2026-11-30T08:06:59.999999999Z", 1),
        ["11-30 08:07"]
    );
}

#[test]
fn six_fields_begin_with_seconds() {
    let entry = ScheduleEntry::new(
        cron("*/20 * * * * *", "UTC"),
        &zone("UTC"),
        timestamp("2026-11-30T08:07:30Z"),
    );
    let seconds: Vec<i64> = entry
        .upcoming(&zone("UTC"), 4)
        .iter()
        .map(|timestamp| timestamp.as_second() % 60)
        .collect();
    assert_eq!(seconds, [40, 0, 20, 40]);
}

#[test]
fn matches_month_ends_and_leap_days() {
    let from = "2027-01-15T00:00:00Z";
    assert_eq!(
        utc("0 0 L * *", from, 4),
        ["01-31 00:00", "02-28 00:00", "03-31 00:00", "04-30 00:00"]
    );
    assert_eq!(
        utc("0 0 31 * *", from, 4),
        ["01-31 00:00", "03-31 00:00", "05-31 00:00", "07-31 00:00"]
    );
    let leap = ScheduleEntry::new(
        cron("0 0 29 2 *", "UTC"),
        &zone("UTC"),
        timestamp("2090-01-01T00:00:00Z"),
    );
    let years: Vec<i16> = leap
        .upcoming(&zone("UTC"), 4)
        .iter()
        .map(|timestamp| timestamp.to_zoned(zone("UTC")).year())
        .collect();
    assert_eq!(years, [2092, 2096, 2104, 2108], "2100 is no leap year");
}

#[test]
fn matches_nth_and_last_weekdays() {
    let from = "2026-11-30T08:00:00Z";
    assert_eq!(utc("0 9 * * 5L", from, 2), ["12-25 09:00", "01-29 09:00"]);
    assert_eq!(
        utc("0 9 * * TUE#2", from, 2),
        ["12-08 09:00", "01-12 09:00"]
    );
    assert_eq!(
        utc("0 9 * * MON#5", from, 2),
        ["11-30 09:00", "03-29 09:00"]
    );
    // The fifth Monday of February occurs every 28 years.
    let rare = ScheduleEntry::new(
        cron("0 0 * 2 MON#5", "UTC"),
        &zone("UTC"),
        timestamp("2026-01-01T00:00:00Z"),
    );
    assert_eq!(
        rare.upcoming(&zone("UTC"), 1),
        [timestamp("2044-02-29T00:00:00Z")]
    );
}

#[test]
fn restricted_day_fields_match_either() {
    let from = "2026-11-30T08:00:00Z";
    assert_eq!(
        utc("0 0 13 * 5", from, 4),
        ["12-04 00:00", "12-11 00:00", "12-13 00:00", "12-18 00:00"]
    );
}

#[test]
fn works_after_2038() {
    assert_eq!(
        utc("14 3 19 1 *", "2038-01-19T03:14:07Z", 2),
        ["01-19 03:14", "01-19 03:14"]
    );
    let entry = ScheduleEntry::new(
        cron("0 3 * * *", "Europe/Berlin"),
        &zone("Europe/Berlin"),
        timestamp("2199-06-01T00:00:00Z"),
    );
    assert_eq!(
        entry.next,
        Some(timestamp("2199-06-01T01:00:00Z")),
        "in summer, by the rules of today"
    );
    let winter = ScheduleEntry::new(
        cron("0 3 * * *", "Europe/Berlin"),
        &zone("Europe/Berlin"),
        timestamp("2199-12-01T00:00:00Z"),
    );
    assert_eq!(winter.next, Some(timestamp("2199-12-01T02:00:00Z")));
}

#[test]
fn nothing_is_due_after_the_last_timestamp() {
    let entry = ScheduleEntry::new(
        cron("@yearly", "UTC"),
        &zone("UTC"),
        timestamp("9999-06-01T00:00:00Z"),
    );
    assert_eq!(entry.next, None);
    assert_eq!(
        ScheduleEntry::new(every(3600), &zone("UTC"), Timestamp::MAX).next,
        None
    );
}

/// The gap between two fifth Mondays of February exceeds the last power of two below the horizon.
#[test]
fn finds_the_last_due_time_up_to_the_horizon() {
    let zone = zone("UTC");
    let cron: Cron = "0 0 * 2 1#5".parse().unwrap();
    let series = Series::Cron(&cron, &zone);
    assert_eq!(
        series.up_to(timestamp("2111-12-31T00:00:00Z")),
        Some(timestamp("2072-02-29T00:00:00Z"))
    );
    assert_eq!(
        series.after(timestamp("2072-02-29T00:00:00Z")),
        Some(timestamp("2112-02-29T00:00:00Z"))
    );
}
