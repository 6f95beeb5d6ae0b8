//! Durations as people write them: `90`, `1.5`, `"30s"`, `"1h 30m"`, `"2d"`.

use std::{fmt, str::FromStr, time::Duration};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A length of time in a spec, a flag or a configuration file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub Duration);

/// Why a text is not a length of time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is not a duration: write seconds (90, 1.5) or units (500ms, 30s, 5m, 1h30m, 2d)")]
pub struct ParseSpanError {
    text: String,
}

/// A century. Beyond it additions to a clock could overflow, and nobody waits that long.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 86_400);

impl Span {
    /// A span of whole seconds.
    pub const fn secs(secs: u64) -> Self {
        Self(Duration::from_secs(secs))
    }

    /// A span of milliseconds.
    pub const fn millis(millis: u64) -> Self {
        Self(Duration::from_millis(millis))
    }

    fn from_secs_f64(secs: f64) -> Option<Self> {
        Duration::try_from_secs_f64(secs).ok().filter(|d| *d <= LONGEST).map(Self)
    }
}

impl FromStr for Span {
    type Err = ParseSpanError;

    fn from_str(text: &str) -> Result<Self, ParseSpanError> {
        let error = || ParseSpanError { text: text.into() };
        if let Ok(secs) = text.trim().parse::<f64>() {
            return Self::from_secs_f64(secs).ok_or_else(error);
        }
        let (days, rest) = split_days(text.trim());
        let parsed: jiff::SignedDuration = match rest {
            "" if !days.is_zero() => jiff::SignedDuration::ZERO,
            rest => rest.parse().map_err(|_| error())?,
        };
        let whole = Duration::try_from(parsed).ok().and_then(|rest| rest.checked_add(days));
        whole.filter(|d| *d <= LONGEST).map(Self).ok_or_else(error)
    }
}

/// Days, of 24 hours each, and what follows them. `jiff` leaves them to calendars, in which some are longer.
fn split_days(text: &str) -> (Duration, &str) {
    let days = text.split_once('d').and_then(|(days, rest)| {
        let days = Duration::try_from_secs_f64(days.trim().parse::<f64>().ok()? * 86_400.0).ok()?;
        Some((days, rest.trim_start()))
    });
    days.unwrap_or((Duration::ZERO, text))
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let secs = self.0.as_secs_f64();
        if self.0.subsec_nanos() == 0 {
            serializer.serialize_u64(self.0.as_secs())
        } else if Self::from_secs_f64(secs) == Some(*self) {
            serializer.serialize_f64(secs)
        } else {
            // From three months on a float no longer holds every nanosecond; the text does.
            serializer.collect_str(self)
        }
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "a duration: seconds as a number, or a text such as \"30s\"")]
        enum Form {
            Secs(f64),
            Text(String),
        }
        let (read, text) = match Form::deserialize(deserializer)? {
            Form::Secs(secs) => (Self::from_secs_f64(secs), secs.to_string()),
            Form::Text(text) => (text.parse().ok(), text),
        };
        read.ok_or_else(|| de::Error::custom(ParseSpanError { text }))
    }
}

#[cfg(test)]
mod tests;
