//! The sequence of due times of a schedule.
//!
//! A cron expression is in civil time. When clocks go forward, some times never occur: a schedule
//! that names hours is then due once, right after the change. When clocks go back, some times occur
//! twice: such a schedule is due only the first time. A schedule that matches in every hour follows
//! elapsed time: it is due in both occurrences of a repeated hour, and misses nothing in a skipped
//! hour.

use std::time::Duration;

use jiff::{
    Timestamp,
    civil::DateTime,
    tz::{Offset, TimeZone},
};

use super::{Cron, Schedule, calendar::MAX_YEARS};

const HOUR: i32 = 3600;
const SECOND: Duration = Duration::from_secs(1);
/// The search does not go beyond this.
const HORIZON: Duration = Duration::from_secs(MAX_YEARS as u64 * 366 * 86_400);

/// The due times of a schedule. `Every` holds the interval and one known due time.
pub(super) enum Series<'a> {
    Every(Duration, Timestamp),
    Cron(&'a Cron, &'a TimeZone),
}

impl<'a> Series<'a> {
    /// Creates the series of a schedule for which `known` is a due time.
    pub(super) fn new(
        schedule: &'a Schedule,
        zone: &'a TimeZone,
        known: Timestamp,
    ) -> Option<Self> {
        match (&schedule.every, &schedule.cron) {
            (Some(every), _) => Some(Self::Every(every.0, known)),
            (None, Some(cron)) => Some(Self::Cron(cron, zone)),
            (None, None) => None,
        }
    }

    /// Returns the first due time after `at`.
    pub(super) fn after(&self, at: Timestamp) -> Option<Timestamp> {
        match self {
            Self::Every(every, known) => {
                multiple(*known, *every, periods(*known, *every, at)?.checked_add(1)?)
            }
            Self::Cron(cron, zone) => next_after(cron, zone, at),
        }
    }

    /// Returns the last due time up to `at`.
    pub(super) fn up_to(&self, at: Timestamp) -> Option<Timestamp> {
        match self {
            Self::Every(every, known) => multiple(*known, *every, periods(*known, *every, at)?),
            Self::Cron(cron, zone) => last_up_to(cron, zone, at),
        }
    }

    /// Counts the due times from `from` to `to`, which are both due times. Counting cron times
    /// stops at `most`.
    pub(super) fn count(&self, from: Timestamp, to: Timestamp, most: u64) -> u64 {
        match self {
            Self::Every(every, _) => {
                periods(from, *every, to).map_or(0, |n| u64::try_from(n).map_or(0, |n| n + 1))
            }
            Self::Cron(..) => {
                let all = std::iter::successors(Some(from), |at| self.after(*at))
                    .take_while(|at| *at <= to);
                all.take(usize::try_from(most).unwrap_or(usize::MAX))
                    .count() as u64
            }
        }
    }
}

/// Returns the first due time of a schedule that starts now.
pub(super) fn first(schedule: &Schedule, zone: &TimeZone, now: Timestamp) -> Option<Timestamp> {
    match (&schedule.every, schedule.start) {
        (Some(_), Some(start)) if start > now => Some(start),
        (Some(every), Some(start)) => Series::Every(every.0, start).after(now),
        (Some(every), None) => now.checked_add(every.0).ok(),
        (None, start) => {
            let instant = Duration::from_nanos(1);
            let begin = start
                .and_then(|start| start.checked_sub(instant).ok())
                .map_or(now, |start| start.max(now));
            Series::new(schedule, zone, now)?.after(begin)
        }
    }
}

/// Returns how many times `every` fits between two timestamps, rounded down, also if `to` is
/// earlier than `from`.
fn periods(from: Timestamp, every: Duration, to: Timestamp) -> Option<i128> {
    let every = i128::try_from(every.as_nanos())
        .ok()
        .filter(|every| *every > 0)?;
    Some((to.as_nanosecond() - from.as_nanosecond()).div_euclid(every))
}

fn multiple(from: Timestamp, every: Duration, times: i128) -> Option<Timestamp> {
    let every = i128::try_from(every.as_nanos()).ok()?;
    Timestamp::from_nanosecond(
        from.as_nanosecond()
            .checked_add(every.checked_mul(times)?)?,
    )
    .ok()
}

/// A period of time with a constant UTC offset.
struct OffsetPeriod {
    /// Start of the period; `None` if it has no start.
    from: Option<Timestamp>,
    /// The offset before `from`.
    before: Offset,
    offset: Offset,
}

impl OffsetPeriod {
    fn containing(zone: &TimeZone, at: Timestamp) -> Self {
        let offset = zone.to_offset(at);
        let just_after = at.checked_add(Duration::from_nanos(1)).unwrap_or(at);
        let change = zone
            .preceding(just_after)
            .next()
            .map(|change| change.timestamp());
        let before = change
            .and_then(|change| change.checked_sub(SECOND).ok())
            .map(|at| zone.to_offset(at));
        Self {
            from: change,
            before: before.unwrap_or(offset),
            offset,
        }
    }

    /// Returns the start of the period, if a match of the expression fell into the gap that the
    /// clock change skipped.
    fn skipped_match(&self, cron: &Cron) -> Option<Timestamp> {
        let from = self.from?;
        let gap = self.offset.seconds() - self.before.seconds();
        // An hourly expression misses nothing in a gap of whole hours.
        if gap <= 0 || cron.is_hourly() && gap % HOUR == 0 {
            return None;
        }
        let (begin, end) = (self.before.to_datetime(from), self.offset.to_datetime(from));
        cron.first_from(begin)
            .filter(|found| *found < end)
            .map(|_| from)
    }

    /// Returns the civil time from which matches count. Earlier ones occurred already, before
    /// clocks went back.
    fn first_new_time(&self, cron: &Cron) -> DateTime {
        match self.from {
            None => DateTime::MIN,
            Some(from) if cron.is_hourly() => self.offset.to_datetime(from),
            Some(from) => self
                .offset
                .to_datetime(from)
                .max(self.before.to_datetime(from)),
        }
    }
}

fn next_after(cron: &Cron, zone: &TimeZone, at: Timestamp) -> Option<Timestamp> {
    // Due times are whole seconds.
    let first = whole_second(at)?.checked_add(SECOND).ok()?;
    let horizon = first.checked_add(HORIZON).unwrap_or(Timestamp::MAX);
    let mut period = OffsetPeriod::containing(zone, first);
    loop {
        if let Some(after_gap) = period.skipped_match(cron).filter(|at| *at >= first) {
            return Some(after_gap);
        }
        let begin = period.from.map_or(first, |from| from.max(first));
        let civil = period
            .offset
            .to_datetime(begin)
            .max(period.first_new_time(cron));
        let change = zone.following(begin).next();
        let found = cron
            .first_from(civil)
            .and_then(|found| period.offset.to_timestamp(found).ok());
        if let Some(found) = found
            && change
                .as_ref()
                .is_none_or(|change| found < change.timestamp())
        {
            return Some(found);
        }
        let change = change.filter(|change| change.timestamp() <= horizon)?;
        period = OffsetPeriod {
            from: Some(change.timestamp()),
            before: period.offset,
            offset: change.offset(),
        };
    }
}

/// Returns the last due time up to `at`. `next_after` is monotonic, so a bisection finds the
/// shortest distance back from `at` after which a time is due, and that time is the last one.
fn last_up_to(cron: &Cron, zone: &TimeZone, at: Timestamp) -> Option<Timestamp> {
    let due_within = |seconds: u64| {
        let from = at.checked_sub(Duration::from_secs(seconds)).ok()?;
        next_after(cron, zone, from).filter(|due| *due <= at)
    };
    let (mut back, mut too_short) = (1, 0);
    while due_within(back).is_none() {
        if back == HORIZON.as_secs() {
            return None;
        }
        too_short = back;
        back = (back * 2).min(HORIZON.as_secs());
    }
    while back - too_short > 1 {
        let middle = too_short.midpoint(back);
        *if due_within(middle).is_some() {
            &mut back
        } else {
            &mut too_short
        } = middle;
    }
    due_within(back)
}

/// Truncates a timestamp to whole seconds.
fn whole_second(at: Timestamp) -> Option<Timestamp> {
    Timestamp::from_nanosecond(at.as_nanosecond().div_euclid(1_000_000_000) * 1_000_000_000).ok()
}
