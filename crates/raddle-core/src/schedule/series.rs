//! The due times of a schedule, one after the other.
//!
//! Those of a cron expression are times of a zone. Where clocks are put forward, some times never come: a schedule that names hours is then due
//! once, as soon as the clocks have been put. Where they are put back, some come twice: such a schedule is due the first time alone. One that is due in
//! every hour goes by the time that passes: it is due in both of two hours that look the same, and misses nothing with an hour that was none.

use std::time::Duration;

use jiff::{
    Timestamp,
    civil::DateTime,
    tz::{Offset, TimeZone},
};

use super::{Cron, Schedule, calendar::FARTHEST_YEARS};

const HOUR: i32 = 3600;
const SECOND: Duration = Duration::from_secs(1);
/// Nothing is looked for beyond this.
const HORIZON: Duration = Duration::from_secs(FARTHEST_YEARS as u64 * 366 * 86_400);

/// The due times of a schedule. For one that is due every so often, one of them is known.
pub(super) enum Series<'a> {
    Every(Duration, Timestamp),
    Cron(&'a Cron, &'a TimeZone),
}

impl<'a> Series<'a> {
    /// Those of a schedule that has `known` for one of them.
    pub(super) fn new(schedule: &'a Schedule, zone: &'a TimeZone, known: Timestamp) -> Option<Self> {
        match (&schedule.every, &schedule.cron) {
            (Some(every), _) => Some(Self::Every(every.0, known)),
            (None, Some(cron)) => Some(Self::Cron(cron, zone)),
            (None, None) => None,
        }
    }

    /// The first one after a moment.
    pub(super) fn after(&self, at: Timestamp) -> Option<Timestamp> {
        match self {
            Self::Every(every, known) => multiple(*known, *every, periods(*known, *every, at)?.checked_add(1)?),
            Self::Cron(cron, zone) => next_after(cron, zone, at),
        }
    }

    /// The last one up to a moment.
    pub(super) fn up_to(&self, at: Timestamp) -> Option<Timestamp> {
        match self {
            Self::Every(every, known) => multiple(*known, *every, periods(*known, *every, at)?),
            Self::Cron(cron, zone) => last_up_to(cron, zone, at),
        }
    }

    /// How many there are from one to another, both of them due times; no more than `most` are counted.
    pub(super) fn count(&self, from: Timestamp, to: Timestamp, most: u64) -> u64 {
        match self {
            Self::Every(every, _) => periods(from, *every, to).map_or(0, |n| u64::try_from(n).map_or(0, |n| n + 1)),
            Self::Cron(..) => {
                let all = std::iter::successors(Some(from), |at| self.after(*at)).take_while(|at| *at <= to);
                all.take(usize::try_from(most).unwrap_or(usize::MAX)).count() as u64
            }
        }
    }
}

/// The first due time of a schedule that begins now.
pub(super) fn first(schedule: &Schedule, zone: &TimeZone, now: Timestamp) -> Option<Timestamp> {
    match (&schedule.every, schedule.start) {
        (Some(_), Some(start)) if start > now => Some(start),
        (Some(every), Some(start)) => Series::Every(every.0, start).after(now),
        (Some(every), None) => now.checked_add(every.0).ok(),
        (None, start) => {
            let instant = Duration::from_nanos(1);
            let begin = start.and_then(|start| start.checked_sub(instant).ok()).map_or(now, |start| start.max(now));
            Series::new(schedule, zone, now)?.after(begin)
        }
    }
}

/// How often `every` fits between two moments; rounded down, also where the second is the earlier one.
fn periods(from: Timestamp, every: Duration, to: Timestamp) -> Option<i128> {
    let every = i128::try_from(every.as_nanos()).ok().filter(|every| *every > 0)?;
    Some((to.as_nanosecond() - from.as_nanosecond()).div_euclid(every))
}

fn multiple(from: Timestamp, every: Duration, times: i128) -> Option<Timestamp> {
    let every = i128::try_from(every.as_nanos()).ok()?;
    Timestamp::from_nanosecond(from.as_nanosecond().checked_add(every.checked_mul(times)?)?).ok()
}

/// A stretch of time in which clocks are not changed.
struct Stretch {
    /// Since when; always, if there is nothing.
    from: Option<Timestamp>,
    /// How they were set before.
    before: Offset,
    offset: Offset,
}

impl Stretch {
    fn around(zone: &TimeZone, at: Timestamp) -> Self {
        let offset = zone.to_offset(at);
        let just_after = at.checked_add(Duration::from_nanos(1)).unwrap_or(at);
        let change = zone.preceding(just_after).next().map(|change| change.timestamp());
        let before = change.and_then(|change| change.checked_sub(SECOND).ok()).map(|at| zone.to_offset(at));
        Self { from: change, before: before.unwrap_or(offset), offset }
    }

    /// Whether a time that never came, at the beginning of this, was one of the expression's.
    fn makes_up_for(&self, cron: &Cron) -> Option<Timestamp> {
        let from = self.from?;
        let gap = self.offset.seconds() - self.before.seconds();
        // A whole hour that is none is missed by nobody who is due in every hour.
        if gap <= 0 || cron.is_hourly() && gap % HOUR == 0 {
            return None;
        }
        let (begin, end) = (self.before.to_datetime(from), self.offset.to_datetime(from));
        cron.first_from(begin).filter(|found| *found < end).map(|_| from)
    }

    /// From which time on the expression's count here. Those before have been there already.
    fn counts_from(&self, cron: &Cron) -> DateTime {
        match self.from {
            None => DateTime::MIN,
            Some(from) if cron.is_hourly() => self.offset.to_datetime(from),
            Some(from) => self.offset.to_datetime(from).max(self.before.to_datetime(from)),
        }
    }
}

fn next_after(cron: &Cron, zone: &TimeZone, at: Timestamp) -> Option<Timestamp> {
    // Due times are whole seconds.
    let first = whole_second(at)?.checked_add(SECOND).ok()?;
    let horizon = first.checked_add(HORIZON).unwrap_or(Timestamp::MAX);
    let mut stretch = Stretch::around(zone, first);
    loop {
        if let Some(made_up) = stretch.makes_up_for(cron).filter(|at| *at >= first) {
            return Some(made_up);
        }
        let begin = stretch.from.map_or(first, |from| from.max(first));
        let civil = stretch.offset.to_datetime(begin).max(stretch.counts_from(cron));
        let change = zone.following(begin).next();
        let found = cron.first_from(civil).and_then(|found| stretch.offset.to_timestamp(found).ok());
        if let Some(found) = found
            && change.as_ref().is_none_or(|change| found < change.timestamp())
        {
            return Some(found);
        }
        let change = change.filter(|change| change.timestamp() <= horizon)?;
        stretch = Stretch { from: Some(change.timestamp()), before: stretch.offset, offset: change.offset() };
    }
}

/// `next_after` grows with the moment that it looks from. So the shortest time back from `at` after which one is due is found by bisection, and that one is the
/// last.
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
        *if due_within(middle).is_some() { &mut back } else { &mut too_short } = middle;
    }
    due_within(back)
}

/// The second that a moment is in.
fn whole_second(at: Timestamp) -> Option<Timestamp> {
    Timestamp::from_nanosecond(at.as_nanosecond().div_euclid(1_000_000_000) * 1_000_000_000).ok()
}
