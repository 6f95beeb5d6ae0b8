//! Validity periods of certificates.

use std::time::{Duration, SystemTime};

use time::OffsetDateTime;

/// The validity period of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// Not before.
    pub from: SystemTime,
    /// Not after.
    pub until: SystemTime,
}

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// Clock skew between machines.
const SKEW: Duration = Duration::from_secs(60 * 60);

impl Validity {
    /// This many days, from slightly before `now`, because the clocks of other machines may be
    /// behind.
    pub fn days(now: SystemTime, days: u32) -> Self {
        Self {
            from: now.checked_sub(SKEW).unwrap_or(now),
            until: now.checked_add(DAY * days).unwrap_or(now),
        }
    }

    /// The intersection with `other`.
    pub(super) fn within(self, other: Self) -> Self {
        Self {
            from: self.from.max(other.from),
            until: self.until.min(other.until),
        }
    }

    /// Start and end in whole seconds, as X.509 encodes them.
    pub(super) fn bounds(self) -> (OffsetDateTime, OffsetDateTime) {
        let whole = |at: SystemTime| OffsetDateTime::from(at).replace_nanosecond(0);
        let whole = |at| whole(at).expect("0 is a valid number of nanoseconds");
        (whole(self.from), whole(self.until))
    }
}
