//! Conversion of arguments and replies.

use raddle_model::Tid;

/// The reply of `TIME`: seconds since the epoch, and microseconds.
pub(super) type Time = (i64, i64);

/// The entries of a stream: ids, and fields with values.
pub(super) type Entries = Vec<(String, Vec<String>)>;

/// Parses ids.
pub(super) fn tids(texts: impl IntoIterator<Item = String>) -> Vec<Tid> {
    texts
        .into_iter()
        .filter_map(|text| text.parse().ok())
        .collect()
}

/// The server's time in microseconds since the epoch.
pub(super) fn micros((seconds, micros): Time) -> i64 {
    seconds * 1_000_000 + micros
}

/// An argument of a script.
pub(super) fn arg(value: impl ToString) -> Vec<u8> {
    value.to_string().into_bytes()
}

/// Converts microseconds since the epoch.
pub(super) fn at_micros(micros: i64) -> jiff::Timestamp {
    jiff::Timestamp::from_microsecond(micros).unwrap_or(jiff::Timestamp::UNIX_EPOCH)
}

/// Converts nanoseconds since the epoch.
pub(super) fn at_nanos(nanos: i64) -> jiff::Timestamp {
    jiff::Timestamp::from_nanosecond(i128::from(nanos)).unwrap_or(jiff::Timestamp::UNIX_EPOCH)
}
