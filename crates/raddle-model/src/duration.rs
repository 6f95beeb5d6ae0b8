//! Durations as users write them: `90`, `1.5`, `"30s"`, `"1h 30m"`, `"2d"`.

use std::{fmt, str::FromStr, time::Duration};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A duration in a spec, a flag or a configuration file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct HumanDuration(pub Duration);

/// The text is not a duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is not a duration: write seconds (90, 1.5) or units (500ms, 30s, 5m, 1h30m, 2d)")]
pub struct ParseDurationError {
    text: String,
}

/// One century. Beyond it, adding to a clock could overflow.
const MAX_DURATION: Duration = Duration::from_secs(100 * 365 * 86_400);

impl HumanDuration {
    /// Creates a duration of whole seconds.
    pub const fn secs(secs: u64) -> Self {
        Self(Duration::from_secs(secs))
    }

    /// Creates a duration of milliseconds.
    pub const fn millis(millis: u64) -> Self {
        Self(Duration::from_millis(millis))
    }

    fn from_secs_f64(secs: f64) -> Option<Self> {
        Duration::try_from_secs_f64(secs)
            .ok()
            .filter(|d| *d <= MAX_DURATION)
            .map(Self)
    }
}

impl FromStr for HumanDuration {
    type Err = ParseDurationError;

    fn from_str(text: &str) -> Result<Self, ParseDurationError> {
        let error = || ParseDurationError { text: text.into() };
        if let Ok(secs) = text.trim().parse::<f64>() {
            return Self::from_secs_f64(secs).ok_or_else(error);
        }
        let (days, rest) = split_days(text.trim());
        let parsed: jiff::SignedDuration = match rest {
            "" if !days.is_zero() => jiff::SignedDuration::ZERO,
            rest => rest.parse().map_err(|_| error())?,
        };
        let whole = Duration::try_from(parsed)
            .ok()
            .and_then(|rest| rest.checked_add(days));
        whole
            .filter(|d| *d <= MAX_DURATION)
            .map(Self)
            .ok_or_else(error)
    }
}

/// Splits off leading days of 24 hours each. `jiff` does not parse days as a duration, because
/// calendar days differ in length.
fn split_days(text: &str) -> (Duration, &str) {
    let days = text.split_once('d').and_then(|(days, rest)| {
        let days = Duration::try_from_secs_f64(days.trim().parse::<f64>().ok()? * 86_400.0).ok()?;
        Some((days, rest.trim_start()))
    });
    days.unwrap_or((Duration::ZERO, text))
}

impl fmt::Display for HumanDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

impl Serialize for HumanDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let secs = self.0.as_secs_f64();
        if self.0.subsec_nanos() == 0 {
            serializer.serialize_u64(self.0.as_secs())
        } else if Self::from_secs_f64(secs) == Some(*self) {
            serializer.serialize_f64(secs)
        } else {
            // From about three months on, an `f64` of seconds cannot represent every nanosecond.
            // The text can.
            serializer.collect_str(self)
        }
    }
}

impl<'de> Deserialize<'de> for HumanDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(
            untagged,
            expecting = "a duration: seconds as a number, or a text such as \"30s\""
        )]
        enum Form {
            Secs(f64),
            Text(String),
        }
        let (read, text) = match Form::deserialize(deserializer)? {
            Form::Secs(secs) => (Self::from_secs_f64(secs), secs.to_string()),
            Form::Text(text) => (text.parse().ok(), text),
        };
        read.ok_or_else(|| de::Error::custom(ParseDurationError { text }))
    }
}

#[cfg(test)]
mod tests;
