//! Decides which due times get a task: the current one, and those that no process was there to
//! fire.

use std::time::Duration;

use jiff::{Timestamp, tz::TimeZone};

use super::{MissedPolicy, Schedule, series::Series};

/// Maximum number of due times that [`MissedPolicy::All`] catches up on: the last ones.
pub const CATCH_UP: usize = 1000;
/// How late [`MissedPolicy::Skip`] still fires a due time, unless a later one has passed: the
/// firing process may be delayed.
pub const PUNCTUAL: Duration = Duration::from_secs(60);
/// Upper bound for counting missed due times, at each firing.
const MAX_COUNTED: u64 = 1000;

/// Reaction to the due times that have passed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    /// Due times to submit a task for, the earliest first.
    pub(super) due: Vec<Timestamp>,
    /// The next due time. It may have passed already.
    pub(super) next: Option<Timestamp>,
    /// How many due times are skipped for good.
    pub(super) missed: u64,
}

/// Plans a schedule whose next due time is `due`. At most `most` tasks are submitted at a time.
pub(super) fn plan(
    schedule: &Schedule,
    zone: &TimeZone,
    due: Timestamp,
    now: Timestamp,
    most: usize,
) -> Plan {
    let Some(series) = Series::new(schedule, zone, due).filter(|_| due <= now) else {
        return Plan {
            due: Vec::new(),
            next: Some(due),
            missed: 0,
        };
    };
    // The rules of a zone may have changed since the due time was stored. The stored due time still
    // holds.
    let latest = series.up_to(now).map_or(due, |latest| latest.max(due));
    let is_unexpired = |at: &Timestamp| {
        schedule
            .lifetime
            .is_none_or(|life| at.checked_add(life.0).is_ok_and(|end| end > now))
    };
    let mut chosen = match schedule.missed {
        MissedPolicy::Skip if now.duration_since(latest).unsigned_abs() > PUNCTUAL => Vec::new(),
        MissedPolicy::Skip | MissedPolicy::One => vec![latest],
        MissedPolicy::All => last_due_times(&series, latest, due),
    };
    chosen.retain(is_unexpired);
    let skipped = series
        .count(due, latest, MAX_COUNTED)
        .saturating_sub(chosen.len() as u64);
    let rest = chosen.split_off(most.min(chosen.len()));
    let next = rest
        .first()
        .copied()
        .or_else(|| series.after(now.max(latest)));
    Plan {
        due: chosen,
        next,
        missed: skipped,
    }
}

/// Returns the last due times from `first` to `latest`, in ascending order.
fn last_due_times(series: &Series<'_>, latest: Timestamp, first: Timestamp) -> Vec<Timestamp> {
    let mut chosen = vec![latest];
    let mut at = latest;
    while chosen.len() < CATCH_UP
        && let Some(before) = at
            .checked_sub(Duration::from_nanos(1))
            .ok()
            .and_then(|at| series.up_to(at))
        && before >= first
    {
        chosen.push(before);
        at = before;
    }
    chosen.reverse();
    chosen
}
