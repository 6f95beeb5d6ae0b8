//! Due times around clock changes: by example, and against a minute-by-minute model.

use std::collections::BTreeSet;

use jiff::{ToSpan, civil::DateTime};
use proptest::{prelude::*, sample};

use super::{super::series::Series, *};

const SPRING: &str = "2027-03-27T12:00:00Z"; // Berlin: on the 28th, from 02:00 to 03:00
const AUTUMN: &str = "2027-10-30T12:00:00Z"; // Berlin: on the 31st, from 03:00 to 02:00

fn berlin(text: &str, after: &str, count: usize) -> Vec<String> {
    shown(text, "Europe/Berlin", after, count)
}

#[test]
fn fires_skipped_times_right_after_the_change() {
    assert_eq!(
        berlin("30 2 * * *", SPRING, 2),
        ["03-28 03:00 +02:00", "03-29 02:30 +02:00"]
    );
    // Once, however many matches were skipped.
    assert_eq!(
        berlin("*/10 2 * * *", SPRING, 2),
        ["03-28 03:00 +02:00", "03-29 02:00 +02:00"]
    );
    // Also once if it is due at that time anyway.
    assert_eq!(
        berlin("0 2,3 * * *", SPRING, 3),
        [
            "03-28 03:00 +02:00",
            "03-29 02:00 +02:00",
            "03-29 03:00 +02:00"
        ]
    );
}

#[test]
fn fires_repeated_times_once() {
    assert_eq!(
        berlin("30 2 * * *", AUTUMN, 2),
        ["10-31 02:30 +02:00", "11-01 02:30 +01:00"]
    );
    assert_eq!(
        berlin("*/30 2 * * *", AUTUMN, 3),
        [
            "10-31 02:00 +02:00",
            "10-31 02:30 +02:00",
            "11-01 02:00 +01:00"
        ]
    );
    assert_eq!(
        berlin("0 3 * * *", AUTUMN, 1),
        ["10-31 03:00 +01:00"],
        "three is there once"
    );
}

#[test]
fn hourly_expressions_follow_elapsed_time() {
    let gaps = |text: &str, after: &str| {
        let zone = zone("Europe/Berlin");
        let entry = ScheduleEntry::new(cron(text, "Europe/Berlin"), &zone, timestamp(after));
        let due = entry.upcoming(&zone, 100);
        due.windows(2)
            .map(|pair| pair[1].duration_since(pair[0]).as_secs() / 60)
            .collect::<BTreeSet<i64>>()
    };
    for after in [SPRING, AUTUMN] {
        assert_eq!(gaps("30 * * * *", after), BTreeSet::from([60]));
        assert_eq!(gaps("*/15 * * * *", after), BTreeSet::from([15]));
    }
}

#[test]
fn handles_half_hour_changes() {
    // Lord Howe: from 02:00 to 02:30 on 2027-10-03, and from 02:00 to 01:30 on 2027-04-04.
    let lord_howe =
        |text: &str, after: &str, count| shown(text, "Australia/Lord_Howe", after, count);
    assert_eq!(
        lord_howe("15 2 * * *", "2027-10-02T10:00:00Z", 2),
        ["10-03 02:30 +11:00", "10-04 02:15 +11:00"]
    );
    assert_eq!(
        lord_howe("15 * * * *", "2027-10-02T14:00:00Z", 3),
        [
            "10-03 01:15 +10:30",
            "10-03 02:30 +11:00",
            "10-03 03:15 +11:00"
        ]
    );
    assert_eq!(
        lord_howe("45 1 * * *", "2027-04-03T10:00:00Z", 2),
        ["04-04 01:45 +11:00", "04-05 01:45 +10:30"]
    );
}

#[test]
fn fires_after_a_skipped_day() {
    // Samoa skipped December 30.
    let apia = shown("0 3 * * *", "Pacific/Apia", "2011-12-29T12:00:00Z", 3);
    assert_eq!(
        apia,
        [
            "12-29 03:00 -10:00",
            "12-31 00:00 +14:00",
            "12-31 03:00 +14:00"
        ]
    );
}

/// A cron expression as sets of values.
#[derive(Clone, Debug)]
struct CronSets {
    minutes: Vec<i8>,
    hours: Vec<i8>,
    days: Vec<i8>,
    weekdays: Vec<i8>,
}

impl CronSets {
    fn text(&self) -> String {
        let field = |values: &[i8]| match values {
            [] => "*".to_owned(),
            values => values
                .iter()
                .map(i8::to_string)
                .collect::<Vec<_>>()
                .join(","),
        };
        format!(
            "{} {} {} * {}",
            field(&self.minutes),
            field(&self.hours),
            field(&self.days),
            field(&self.weekdays)
        )
    }

    fn has(&self, timestamp: DateTime) -> bool {
        let any = |values: &[i8], value| values.is_empty() || values.contains(&value);
        let weekday = timestamp.weekday().to_sunday_zero_offset();
        let day = match (self.days.is_empty(), self.weekdays.is_empty()) {
            (false, false) => {
                self.days.contains(&timestamp.day()) || self.weekdays.contains(&weekday)
            }
            _ => any(&self.days, timestamp.day()) && any(&self.weekdays, weekday),
        };
        timestamp.second() == 0
            && day
            && any(&self.hours, timestamp.hour())
            && any(&self.minutes, timestamp.minute())
    }

    /// Finds all due times of a period, minute by minute.
    fn model_due_times(&self, zone: &TimeZone, from: Timestamp, to: Timestamp) -> Vec<Timestamp> {
        let mut found = BTreeSet::new();
        let mut seen: BTreeSet<DateTime> = BTreeSet::new();
        // Civil times before the period count as seen.
        let mut timestamp = from - 26.hours();
        let mut before = zone.to_datetime(timestamp);
        while timestamp < to {
            let now = zone.to_datetime(timestamp);
            let is_new = seen.insert(now);
            let hourly = self.hours.is_empty();
            if self.has(now) && (is_new || hourly) {
                found.insert(timestamp);
            }
            // Civil times that the clock change skipped.
            let mut skipped = before + 1.minutes();
            let is_gap = skipped < now;
            let whole_hours =
                is_gap && (now - skipped).total(jiff::Unit::Minute).unwrap() as i64 % 60 == 0;
            while skipped < now {
                if self.has(skipped) && !(hourly && whole_hours) {
                    found.insert(timestamp);
                }
                skipped += 1.minutes();
            }
            before = now;
            timestamp += 1.minutes();
        }
        found
            .into_iter()
            .filter(|timestamp| *timestamp > from)
            .collect()
    }
}

fn cron_sets() -> impl Strategy<Value = CronSets> {
    let some = |from: i8, to: i8, most: usize| {
        sample::subsequence((from..=to).collect::<Vec<_>>(), 0..=most)
    };
    // Mostly hours in which clocks change.
    let hours = prop_oneof![3 => some(0, 4, 3), 1 => some(0, 23, 3), 1 => Just(Vec::new())];
    (some(0, 59, 4), hours, some(1, 31, 12), some(0, 6, 3)).prop_map(
        |(minutes, hours, days, weekdays)| CronSets {
            minutes,
            hours,
            days,
            weekdays,
        },
    )
}

const ZONES: [&str; 9] = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "America/St_Johns",
    "Australia/Lord_Howe",
    "Africa/Casablanca",
    "America/Santiago",
    "Asia/Kolkata",
    "Asia/Tehran",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// No due time is lost or duplicated, in either direction.
    #[test]
    fn due_times_match_the_model(
        cron_sets in cron_sets(),
        name in sample::select(ZONES.to_vec()),
        year in 1_420_000_000i64..2_400_000_000,
        shift in -2000i64..2000,
    ) {
        let zone = zone(name);
        let near = Timestamp::from_second(year - year % 60).unwrap();
        let change = zone.following(near).next().map_or(near, |change| change.timestamp());
        let from = change + (shift - 1500).minutes();
        let to = from + 50.hours();
        let parsed: Cron = cron_sets.text().parse().unwrap();
        let series = Series::Cron(&parsed, &zone);
        let expected = cron_sets.model_due_times(&zone, from, to);
        let forward: Vec<_> = std::iter::successors(series.after(from), |timestamp| series.after(*timestamp)).take_while(|timestamp| *timestamp < to).collect();
        prop_assert_eq!(&forward, &expected, "'{}' in {} from {}", cron_sets.text(), name, from);
        let instant = Duration::from_nanos(1);
        let mut back: Vec<_> = std::iter::successors(series.up_to(to - instant), |timestamp| series.up_to(*timestamp - instant))
            .take_while(|timestamp| *timestamp > from)
            .collect();
        back.reverse();
        prop_assert_eq!(&back, &expected, "back from {} for '{}' in {}", to, cron_sets.text(), name);
        if let (Some(first), Some(last)) = (expected.first(), expected.last()) {
            prop_assert_eq!(series.count(*first, *last, u64::MAX), expected.len() as u64);
        }
    }

    /// Over decades, each due time is later than the one before.
    #[test]
    fn due_times_only_ever_increase(cron_sets in cron_sets(), name in sample::select(ZONES.to_vec()), begin in 0i64..250_000_000_000) {
        let zone = zone(name);
        let parsed: Cron = cron_sets.text().parse().unwrap();
        let series = Series::Cron(&parsed, &zone);
        let mut timestamp = Timestamp::from_second(begin).unwrap();
        for _ in 0..50 {
            let Some(next) = series.after(timestamp) else { break };
            prop_assert!(next > timestamp);
            prop_assert_eq!(series.up_to(next), Some(next));
            prop_assert_eq!(series.up_to(next - Duration::from_nanos(1)).filter(|before| *before > timestamp), None);
            timestamp = next;
        }
    }

    #[test]
    fn parsing_arbitrary_text_does_not_panic(text in "\\PC{0,40}|[0-9*/,#L? -]{0,40}") {
        let _ = text.parse::<Cron>();
    }
}
