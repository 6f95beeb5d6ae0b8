//! Reading what a server answers.

use raddle_core::Tid;
use redis::Value;

/// The items of an answer. Anything but a list has none.
pub(super) fn list(value: Value) -> Vec<Value> {
    match value {
        Value::Array(items) | Value::Set(items) => items,
        Value::Map(pairs) => pairs.into_iter().flat_map(|(key, value)| [key, value]).collect(),
        _ => Vec::new(),
    }
}

/// An answer as bytes.
pub(super) fn bytes(value: Value) -> Vec<u8> {
    match value {
        Value::BulkString(bytes) => bytes,
        Value::SimpleString(text) => text.into_bytes(),
        Value::Okay => b"OK".to_vec(),
        Value::Int(number) => number.to_string().into_bytes(),
        _ => Vec::new(),
    }
}

/// An answer as text. Everything but output was written as text by us.
pub(super) fn text(value: Value) -> String {
    String::from_utf8(bytes(value)).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

/// An answer as text, unless there is none.
pub(super) fn maybe(value: Value) -> Option<String> {
    match value {
        Value::Nil | Value::Boolean(false) => None,
        value => Some(text(value)),
    }
}

/// An answer as a number; 0 if it is none.
pub(super) fn number(value: Value) -> u64 {
    match value {
        Value::Int(number) => u64::try_from(number).unwrap_or(0),
        value => text(value).parse().unwrap_or(0),
    }
}

/// An answer as an id.
pub(super) fn tid(value: Value) -> Option<Tid> {
    text(value).parse().ok()
}

/// The ids in an answer.
pub(super) fn tids(value: Value) -> Vec<Tid> {
    list(value).into_iter().filter_map(tid).collect()
}

/// The server's time in microseconds since the epoch, as `TIME` gives it.
pub(super) fn micros(value: Value) -> i64 {
    let parts: Vec<i64> = list(value).into_iter().map(|part| number(part) as i64).collect();
    parts.first().copied().unwrap_or(0) * 1_000_000 + parts.get(1).copied().unwrap_or(0)
}

/// The entries of a stream: their ids, and their fields with values.
pub(super) fn entries(value: Value) -> Vec<(String, Vec<String>)> {
    let entry = |item: Value| {
        let mut parts = list(item).into_iter();
        Some((text(parts.next()?), list(parts.next()?).into_iter().map(text).collect()))
    };
    list(value).into_iter().filter_map(entry).collect()
}

/// An argument of a script.
pub(super) fn arg(value: impl ToString) -> Vec<u8> {
    value.to_string().into_bytes()
}

/// A time in microseconds since the epoch.
pub(super) fn at_micros(micros: i64) -> jiff::Timestamp {
    jiff::Timestamp::from_microsecond(micros).unwrap_or(jiff::Timestamp::UNIX_EPOCH)
}

/// A time in nanoseconds since the epoch.
pub(super) fn at_nanos(nanos: i64) -> jiff::Timestamp {
    jiff::Timestamp::from_nanosecond(i128::from(nanos)).unwrap_or(jiff::Timestamp::UNIX_EPOCH)
}
