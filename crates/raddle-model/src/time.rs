//! Timestamps as integers.

use std::time::Duration;

use jiff::Timestamp;

/// Returns nanoseconds since the epoch. An `i64` covers the years 1677 to 2262; timestamps outside
/// saturate.
pub fn unix_nanos(at: Timestamp) -> i64 {
    at.as_nanosecond().clamp(i64::MIN.into(), i64::MAX.into()) as i64
}

/// Returns the time `span` after `nanos`, both in nanoseconds since the epoch. Saturates.
pub fn nanos_after(nanos: i64, span: Duration) -> i64 {
    nanos.saturating_add(i64::try_from(span.as_nanos()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_outside_the_range_saturate() {
        let nanos = |text: &str| unix_nanos(text.parse().unwrap());
        assert_eq!(nanos("1970-01-01T00:00:01Z"), 1_000_000_000);
        assert_eq!(nanos("1969-12-31T23:59:59Z"), -1_000_000_000);
        assert_eq!(
            (nanos("0001-01-01T00:00:00Z"), nanos("9000-01-01T00:00:00Z")),
            (i64::MIN, i64::MAX)
        );
    }

    #[test]
    fn addition_saturates() {
        assert_eq!(nanos_after(5, Duration::from_nanos(7)), 12);
        assert_eq!(nanos_after(5, Duration::MAX), i64::MAX);
        assert_eq!(nanos_after(i64::MAX, Duration::from_nanos(1)), i64::MAX);
    }
}
