//! Task ids: 64-bit, 19 decimal digits, sorted by time, unique per broker.
//!
//! A TID is the time of submission in nanoseconds, whose low 12 bits are replaced by a counter. The
//! counter overflows into the time part, so ids keep increasing when the clock stalls or goes back.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::text::serialized_as_text;

const COUNTER_BITS: u32 = 12;
const SHORT_DIGITS: usize = 10;
/// Ids with the same short form differ by a multiple of this.
pub const SHORT_MODULUS: u64 = 10u64.pow(SHORT_DIGITS as u32);
const MIN: u64 = 10u64.pow(18);
const MAX: u64 = i64::MAX as u64;

/// The id of a task. The message that requested the task and everything that results from it have
/// the same id.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tid(u64);

/// The last ten digits of a [`Tid`], as in process titles.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "u64", into = "u64")]
pub struct ShortTid(u64);

/// Generates strictly increasing ids. Each broker has one; the last id is part of the broker's
/// stored state.
#[derive(Clone, Copy, Debug)]
pub struct TidClock {
    last: u64,
}

/// The text is not a task id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is not a task id: give its 19 digits, or the last 10 as shown by ps")]
pub struct ParseTidError {
    text: String,
}

/// A task id as a user gives it: all digits, or the last ten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TidArg {
    /// All 19 digits.
    Full(Tid),
    /// The last ten digits. Only the broker can resolve them.
    Short(ShortTid),
}

impl Tid {
    /// Converts a number to an id, if it is in the range of ids.
    pub fn from_u64(raw: u64) -> Option<Self> {
        (MIN..=MAX).contains(&raw).then_some(Self(raw))
    }

    /// Returns the id as a number for a signed 64-bit column.
    pub fn as_i64(self) -> i64 {
        self.0 as i64
    }

    /// Returns the id as a number.
    pub fn as_u64(self) -> u64 {
        self.0
    }

    /// Returns the last ten digits.
    pub fn short(self) -> ShortTid {
        ShortTid(self.0 % SHORT_MODULUS)
    }

    /// Returns when the id was generated, in nanoseconds since the epoch. The counter makes it
    /// inexact by up to four microseconds.
    pub fn unix_nanos(self) -> u64 {
        self.0
    }
}

impl ShortTid {
    /// Returns the digits as a number below [`SHORT_MODULUS`].
    pub fn as_u64(self) -> u64 {
        self.0
    }

    /// Returns the highest number up to `most` that ends in these digits.
    pub fn at_most(self, most: u64) -> Option<u64> {
        let candidate = most - most % SHORT_MODULUS + self.0;
        if candidate <= most {
            Some(candidate)
        } else {
            candidate.checked_sub(SHORT_MODULUS)
        }
    }
}

impl TidClock {
    /// Continues after `last`, the highest id that the broker ever generated (0 for a new broker).
    pub fn resume(last: u64) -> Self {
        Self { last }
    }

    /// Returns the next id at the wall-clock time `now_nanos`.
    pub fn next(&mut self, now_nanos: u64) -> Tid {
        let time_part = (now_nanos >> COUNTER_BITS) << COUNTER_BITS;
        self.last = time_part.max(self.last.saturating_add(1)).clamp(MIN, MAX);
        Tid(self.last)
    }

    /// Returns the highest id generated so far, to be stored with the broker.
    pub fn last(&self) -> u64 {
        self.last
    }
}

impl FromStr for Tid {
    type Err = ParseTidError;

    fn from_str(text: &str) -> Result<Self, ParseTidError> {
        let all_digits = text.len() == 19 && text.bytes().all(|b| b.is_ascii_digit());
        all_digits
            .then(|| text.parse().ok().and_then(Self::from_u64))
            .flatten()
            .ok_or_else(|| ParseTidError { text: text.into() })
    }
}

impl FromStr for TidArg {
    type Err = ParseTidError;

    fn from_str(text: &str) -> Result<Self, ParseTidError> {
        if text.len() == SHORT_DIGITS && text.bytes().all(|b| b.is_ascii_digit()) {
            let digits = text
                .parse()
                .map_err(|_| ParseTidError { text: text.into() })?;
            return Ok(Self::Short(ShortTid(digits)));
        }
        text.parse().map(Self::Full)
    }
}

impl fmt::Display for Tid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Display for TidArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full(tid) => tid.fmt(f),
            Self::Short(short) => short.fmt(f),
        }
    }
}

impl fmt::Debug for Tid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<u64> for ShortTid {
    fn from(number: u64) -> Self {
        Self(number % SHORT_MODULUS)
    }
}

impl From<ShortTid> for u64 {
    fn from(short: ShortTid) -> Self {
        short.0
    }
}

impl fmt::Display for ShortTid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:010}", self.0)
    }
}

impl fmt::Debug for ShortTid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

// Most JSON parsers lose digits of numbers beyond 2^53, so ids are strings.
serialized_as_text!(Tid);

#[cfg(test)]
mod tests;
