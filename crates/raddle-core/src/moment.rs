//! Moments as numbers.

use jiff::Timestamp;

/// Nanoseconds since the epoch. A number of this size reaches from 1677 to 2262; what is before or after counts as its beginning or end.
pub fn unix_nanos(at: Timestamp) -> i64 {
    at.as_nanosecond().clamp(i64::MIN.into(), i64::MAX.into()) as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_number_holds_is_at_its_own_end() {
        let nanos = |text: &str| unix_nanos(text.parse().unwrap());
        assert_eq!(nanos("1970-01-01T00:00:01Z"), 1_000_000_000);
        assert_eq!(nanos("1969-12-31T23:59:59Z"), -1_000_000_000);
        assert_eq!((nanos("0001-01-01T00:00:00Z"), nanos("9000-01-01T00:00:00Z")), (i64::MIN, i64::MAX));
    }
}
