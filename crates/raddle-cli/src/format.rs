//! Formats times and durations.

pub(crate) use raddle_client::text::{age, count, one_unit, progress, three_digits, time};
