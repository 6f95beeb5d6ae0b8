//! The two clocks: the wall clock for users and ids, `CLOCK_MONOTONIC` for leases.

use std::time::{SystemTime, UNIX_EPOCH};

use jiff::Timestamp;
use rustix::time::{ClockId, clock_gettime};

/// Wall-clock nanoseconds since the epoch.
pub(super) fn wall() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos() as u64)
}

/// Nanoseconds since boot, without suspended time, during which no lease must expire. The clock
/// cannot be set, and is the same for all processes.
pub(super) fn machine() -> i64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

/// A number that identifies this boot of the machine.
pub(super) fn boot() -> i64 {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let hex: String = id
        .chars()
        .filter(char::is_ascii_hexdigit)
        .take(15)
        .collect();
    i64::from_str_radix(&hex, 16).unwrap_or(0)
}

/// A unique name that cannot be guessed.
pub(super) fn unique() -> String {
    let uuid = std::fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap_or_default();
    format!("{}-{}{}", std::process::id(), wall(), uuid.trim())
}

/// Converts a stored wall-clock time.
pub(super) fn timestamp(nanos: i64) -> Timestamp {
    Timestamp::from_nanosecond(i128::from(nanos)).unwrap_or(Timestamp::UNIX_EPOCH)
}
