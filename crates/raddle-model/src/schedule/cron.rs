//! Cron expressions: five fields (minute, hour, day of the month, month, day of the week), or six
//! with seconds in front.
//!
//! A field is a list of values, ranges and steps. Months and weekdays have names. Both 0 and 7 are
//! Sunday, `L` is the last day of the month, `5L` its last Friday and `5#2` its second Friday. If
//! both day fields are restricted, either may match, as in traditional cron. `calendar.rs` searches
//! days and times; `series.rs` defines what happens when clocks change.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A cron expression.
#[derive(Clone, Debug)]
pub struct Cron {
    text: String,
    pub(super) seconds: u64,
    pub(super) minutes: u64,
    pub(super) hours: u64,
    pub(super) days: Days,
    pub(super) months: u64,
}

/// The days of a cron expression, as bit sets.
#[derive(Clone, Debug, Default)]
pub(super) struct Days {
    /// Days of the month.
    pub(super) of_month: u64,
    /// The last day of the month.
    pub(super) last: bool,
    /// Days of the week.
    pub(super) of_week: u64,
    /// For each weekday: its occurrences within the month, 1 to 5.
    pub(super) nth: [u64; 7],
    /// Weekdays whose last occurrence in the month matches.
    pub(super) last_of_week: u64,
}

/// The text is not a cron expression.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cron '{text}': {reason}")]
pub struct ParseCronError {
    text: String,
    reason: String,
}

/// The value range of a field.
struct Field {
    name: &'static str,
    from: u32,
    to: u32,
    names: &'static [&'static str],
}

const SECOND: Field = Field {
    name: "second",
    from: 0,
    to: 59,
    names: &[],
};
const MINUTE: Field = Field {
    name: "minute",
    from: 0,
    to: 59,
    names: &[],
};
const HOUR: Field = Field {
    name: "hour",
    from: 0,
    to: 23,
    names: &[],
};
const DAY: Field = Field {
    name: "day of the month",
    from: 1,
    to: 31,
    names: &[],
};
const MONTHS: [&str; 12] = [
    "JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC",
];
const MONTH: Field = Field {
    name: "month",
    from: 1,
    to: 12,
    names: &MONTHS,
};
const WEEKDAYS: [&str; 7] = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];
const WEEKDAY: Field = Field {
    name: "day of the week",
    from: 0,
    to: 7,
    names: &WEEKDAYS,
};
const EVERY_WEEKDAY: u64 = 0b111_1111;
/// Maximum length, well beyond any sensible expression.
const MAX_LENGTH: usize = 256;

/// Shorthands for common expressions.
const SHORTHANDS: [(&str, &str); 7] = [
    ("@hourly", "0 * * * *"),
    ("@daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@weekly", "0 0 * * 0"),
    ("@monthly", "0 0 1 * *"),
    ("@yearly", "0 0 1 1 *"),
    ("@annually", "0 0 1 1 *"),
];

impl Cron {
    /// Returns the expression as it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns whether the expression matches in every hour of the day. Such a schedule follows
    /// elapsed time; one that names hours follows the civil clock.
    pub(super) fn is_hourly(&self) -> bool {
        self.hours == HOUR.all()
    }

    /// Returns whether the day of the month is unrestricted.
    pub(super) fn is_any_day_of_month(&self) -> bool {
        self.days.of_month == DAY.all()
    }

    /// Returns whether the day of the week is unrestricted.
    pub(super) fn is_any_weekday(&self) -> bool {
        self.days.of_week == EVERY_WEEKDAY
    }

    fn parse(text: &str) -> Result<Self, String> {
        if text.len() > MAX_LENGTH {
            return Err(format!("is longer than {MAX_LENGTH} bytes"));
        }
        let plain = match text.trim().strip_prefix('@') {
            Some(_) => {
                let known = SHORTHANDS
                    .iter()
                    .find(|(word, _)| word.eq_ignore_ascii_case(text.trim()));
                let words = || SHORTHANDS.map(|(word, _)| word).join(", ");
                known
                    .ok_or_else(|| {
                        format!(
                            "is not a known shorthand: use one of {}, or five fields",
                            words()
                        )
                    })?
                    .1
            }
            None => text,
        };
        let fields: Vec<&str> = plain.split_ascii_whitespace().collect();
        let (second, fields) = match fields.as_slice() {
            [second, rest @ ..] if rest.len() == 5 => (*second, rest),
            rest if rest.len() == 5 => ("0", rest),
            other => {
                return Err(format!(
                    "has {} fields: write five (minute hour day month weekday), or six with seconds in front",
                    other.len()
                ));
            }
        };
        let mut days = Days::default();
        days.parse_days_of_month(fields[2])?;
        days.parse_days_of_week(fields[4])?;
        Ok(Self {
            text: text.to_owned(),
            seconds: SECOND.parse_list(second)?,
            minutes: MINUTE.parse_list(fields[0])?,
            hours: HOUR.parse_list(fields[1])?,
            days,
            months: MONTH.parse_list(fields[3])?,
        })
    }
}

impl Days {
    fn parse_days_of_month(&mut self, text: &str) -> Result<(), String> {
        for item in text.split(',') {
            match item {
                "L" | "l" => self.last = true,
                item => self.of_month |= DAY.parse_item(item)?,
            }
        }
        Ok(())
    }

    fn parse_days_of_week(&mut self, text: &str) -> Result<(), String> {
        for item in text.split(',') {
            if let Some((day, nth)) = item.split_once('#') {
                let nth = nth.parse().ok().filter(|nth| (1..=5).contains(nth));
                let nth: u32 = nth.ok_or_else(|| {
                    format!("in '{item}' a number from 1 to 5 has to follow the '#'")
                })?;
                self.nth[WEEKDAY.parse_value(day)? as usize % 7] |= 1 << nth;
            } else if let Some(day) = item.strip_suffix(['L', 'l']).filter(|day| !day.is_empty()) {
                self.last_of_week |= 1 << (WEEKDAY.parse_value(day)? % 7);
            } else {
                let days = WEEKDAY.parse_item(item)?;
                // Map 7 to Sunday.
                self.of_week |= days & EVERY_WEEKDAY | days >> 7;
            }
        }
        Ok(())
    }
}

impl Field {
    /// Returns all values of the field.
    fn all(&self) -> u64 {
        range(self.from, self.to, 1)
    }

    fn parse_list(&self, text: &str) -> Result<u64, String> {
        text.split(',')
            .try_fold(0, |set, item| Ok(set | self.parse_item(item)?))
    }

    /// Parses one element of a list: `*`, `3` or `3-7`, optionally with a step.
    fn parse_item(&self, text: &str) -> Result<u64, String> {
        let (values, step) = match text.split_once('/') {
            Some((values, step)) => {
                let most = self.to - self.from;
                let step = step.parse().ok().filter(|step| (1..=most).contains(step));
                let wrong = || {
                    format!(
                        "the step in '{text}' of the {} has to be a number from 1 to {most}",
                        self.name
                    )
                };
                (values, Some(step.ok_or_else(wrong)?))
            }
            None => (text, None),
        };
        let (from, to) = match values.split_once('-') {
            _ if values == "*" || values == "?" => (self.from, self.to),
            Some((from, to)) => (self.parse_value(from)?, self.parse_value(to)?),
            // With a step, the range runs to the end of the field.
            None => {
                let from = self.parse_value(values)?;
                (from, if step.is_some() { self.to } else { from })
            }
        };
        if from > to {
            let Self {
                from: first,
                to: last,
                ..
            } = self;
            return Err(format!(
                "the {} '{text}' begins after its end: write two ranges, {from}-{last},{first}-{to}",
                self.name
            ));
        }
        Ok(range(from, to, step.unwrap_or(1)))
    }

    fn parse_value(&self, text: &str) -> Result<u32, String> {
        if let Some(index) = self
            .names
            .iter()
            .position(|name| name.eq_ignore_ascii_case(text))
        {
            return Ok(index as u32 + self.from);
        }
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let value = text
            .parse()
            .ok()
            .filter(|value| is_number && (self.from..=self.to).contains(value));
        let Self {
            name,
            from,
            to,
            names,
        } = self;
        let or = names
            .get(1)
            .map_or(String::new(), |name| format!(", nor a name such as {name}"));
        value.ok_or_else(|| format!("the {name} '{text}' is not a number from {from} to {to}{or}"))
    }
}

fn range(from: u32, to: u32, step: u32) -> u64 {
    (from..=to)
        .step_by(step as usize)
        .fold(0, |set, value| set | 1 << value)
}

impl FromStr for Cron {
    type Err = ParseCronError;

    fn from_str(text: &str) -> Result<Self, ParseCronError> {
        let wrong = |reason| ParseCronError {
            text: text.chars().take(MAX_LENGTH).collect(),
            reason,
        };
        let cron = Self::parse(text).map_err(wrong)?;
        if !cron.is_ever_due() {
            return Err(wrong("is never due: there is no such day".into()));
        }
        Ok(cron)
    }
}

impl PartialEq for Cron {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Cron {}

impl fmt::Display for Cron {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}

impl Serialize for Cron {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for Cron {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(de::Error::custom)
    }
}
