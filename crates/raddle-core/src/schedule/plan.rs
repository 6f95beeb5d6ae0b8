//! What is made of due times that have come: of one that is on time, and of those that nobody was there for.

use std::time::Duration;

use jiff::{Timestamp, tz::TimeZone};

use super::{Missed, Schedule, series::Series};

/// How many due times are made up for at most, the last of them, by [`Missed::All`].
pub const CATCH_UP: usize = 1000;
/// So late a due time still counts as kept by [`Missed::Skip`], unless another has come since: whoever fires may be held up.
pub const PUNCTUAL: Duration = Duration::from_secs(60);
/// Missed due times are counted up to this number, each time that some are found.
const COUNTED: u64 = 1000;

/// What is to be done about the due times that have come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    /// Those to submit a task for, the earliest first.
    pub(super) due: Vec<Timestamp>,
    /// The next one from then on. It may have come already.
    pub(super) next: Option<Timestamp>,
    /// How many are left out for good.
    pub(super) missed: u64,
}

/// Decides about a schedule whose next due time is `due`. No more than `most` tasks are submitted at a time.
pub(super) fn plan(schedule: &Schedule, zone: &TimeZone, due: Timestamp, now: Timestamp, most: usize) -> Plan {
    let Some(series) = Series::new(schedule, zone, due).filter(|_| due <= now) else {
        return Plan { due: Vec::new(), next: Some(due), missed: 0 };
    };
    // The rules of a zone may have changed since the due time was stored; it holds all the same.
    let latest = series.up_to(now).map_or(due, |latest| latest.max(due));
    let lives = |at: &Timestamp| schedule.lifetime.is_none_or(|life| at.checked_add(life.0).is_ok_and(|end| end > now));
    let mut found = match schedule.missed {
        Missed::Skip if now.duration_since(latest).unsigned_abs() > PUNCTUAL => Vec::new(),
        Missed::Skip | Missed::One => vec![latest],
        Missed::All => back_from(&series, latest, due),
    };
    found.retain(lives);
    let left_out = series.count(due, latest, COUNTED).saturating_sub(found.len() as u64);
    let rest = found.split_off(most.min(found.len()));
    let next = rest.first().copied().or_else(|| series.after(now.max(latest)));
    Plan { due: found, next, missed: left_out }
}

/// The last due times from `first` to `latest`, in their order.
fn back_from(series: &Series<'_>, latest: Timestamp, first: Timestamp) -> Vec<Timestamp> {
    let mut found = vec![latest];
    let mut at = latest;
    while found.len() < CATCH_UP
        && let Some(before) = at.checked_sub(Duration::from_nanos(1)).ok().and_then(|at| series.up_to(at))
        && before >= first
    {
        found.push(before);
        at = before;
    }
    found.reverse();
    found
}
