//! From when until when a certificate is valid.

use std::time::{Duration, SystemTime};

use time::OffsetDateTime;

/// From when until when a certificate is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// Not before.
    pub from: SystemTime,
    /// Not after.
    pub until: SystemTime,
}

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// How far the clocks of machines may be apart that talk to each other at once.
const SKEW: Duration = Duration::from_secs(60 * 60);

impl Validity {
    /// From a little before `now`, for machines whose clocks are behind, for this many days.
    pub fn days(now: SystemTime, days: u32) -> Self {
        Self {
            from: now.checked_sub(SKEW).unwrap_or(now),
            until: now.checked_add(DAY * days).unwrap_or(now),
        }
    }

    /// Not longer than `other`.
    pub(super) fn within(self, other: Self) -> Self {
        Self {
            from: self.from.max(other.from),
            until: self.until.min(other.until),
        }
    }

    /// As certificates have it: in whole seconds.
    pub(super) fn bounds(self) -> (OffsetDateTime, OffsetDateTime) {
        let whole = |at: SystemTime| OffsetDateTime::from(at).replace_nanosecond(0);
        let whole = |at| whole(at).expect("no nanoseconds are a number of nanoseconds");
        (whole(self.from), whole(self.until))
    }
}
