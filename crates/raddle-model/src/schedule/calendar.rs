//! The days and times of a cron expression in civil time. Nothing here knows about time zones.

use jiff::civil::{Date, DateTime, Time, date, time};

use super::Cron;

/// How far ahead to search for a day. The rarest, such as a fifth Monday in February, are at most
/// 40 years apart.
pub(super) const MAX_YEARS: i16 = 60;

impl Cron {
    /// Returns the first match at or after `from`.
    pub(super) fn first_from(&self, from: DateTime) -> Option<DateTime> {
        let (day, at) = (from.date(), from.time());
        if self.matches_day(day)
            && let Some(found) = self.time_from(at)
        {
            return Some(day.to_datetime(found));
        }
        let day = self.day_after(day)?;
        Some(day.to_datetime(self.time_from(Time::midnight())?))
    }

    /// Returns whether any day matches at all.
    pub(super) fn is_ever_due(&self) -> bool {
        self.day_after(date(2000, 1, 1)).is_some()
    }

    fn matches_day(&self, day: Date) -> bool {
        self.has_month(day) && self.has_day(day)
    }

    fn has_month(&self, day: Date) -> bool {
        self.months & 1 << day.month() != 0
    }

    fn has_day(&self, day: Date) -> bool {
        let (number, length) = (day.day() as u32, day.days_in_month() as u32);
        let weekday = day.weekday().to_sunday_zero_offset() as usize;
        let of_month = self.days.of_month & 1 << number != 0 || self.days.last && number == length;
        let nth = (number - 1) / 7 + 1;
        let of_week = self.days.of_week & 1 << weekday != 0
            || self.days.nth[weekday] & 1 << nth != 0
            || self.days.last_of_week & 1 << weekday != 0 && number + 7 > length;
        match (self.is_any_day_of_month(), self.is_any_weekday()) {
            (true, true) => true,
            (true, false) => of_week,
            (false, true) => of_month,
            (false, false) => of_month || of_week,
        }
    }

    fn day_after(&self, day: Date) -> Option<Date> {
        let last_year = day.year().saturating_add(MAX_YEARS);
        let mut day = day.tomorrow().ok()?;
        while day.year() <= last_year {
            if !self.has_month(day) {
                day = day.last_of_month().tomorrow().ok()?;
            } else if self.has_day(day) {
                return Some(day);
            } else {
                day = day.tomorrow().ok()?;
            }
        }
        None
    }

    /// Returns the first match of a day at or after `at`.
    fn time_from(&self, at: Time) -> Option<Time> {
        let (hour, minute, second) = (at.hour() as u32, at.minute() as u32, at.second() as u32);
        let (first_minute, first_second) = (next(self.minutes, 0)?, next(self.seconds, 0)?);
        if has(self.hours, hour) {
            if has(self.minutes, minute)
                && let Some(second) = next(self.seconds, second)
            {
                return Some(civil_time(hour, minute, second));
            }
            if let Some(minute) = next(self.minutes, minute + 1) {
                return Some(civil_time(hour, minute, first_second));
            }
        }
        Some(civil_time(
            next(self.hours, hour + 1)?,
            first_minute,
            first_second,
        ))
    }
}

fn civil_time(hour: u32, minute: u32, second: u32) -> Time {
    time(hour as i8, minute as i8, second as i8, 0)
}

fn has(set: u64, value: u32) -> bool {
    set & 1 << value != 0
}

/// Returns the first element of a bit set from `value` on.
fn next(set: u64, value: u32) -> Option<u32> {
    let rest = set >> value;
    (rest != 0).then(|| value + rest.trailing_zeros())
}
