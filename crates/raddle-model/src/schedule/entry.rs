//! A schedule as a broker stores it, and its transitions. They are pure: a broker applies one by
//! compare-and-set, if no other process has changed the entry meanwhile.

use jiff::{Timestamp, tz::TimeZone};
use serde::{Deserialize, Serialize};

use super::{
    Schedule,
    plan::{Plan, plan},
    series,
};

/// A schedule as a broker stores it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScheduleEntry {
    /// The schedule as it was written.
    pub schedule: Schedule,
    /// The manager whose schedule file holds it; `None` if a user created it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Whether it is paused.
    pub paused: bool,
    /// The next due time. While the schedule is paused, the due time at the moment of the pause;
    /// `None` once it is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<Timestamp>,
    /// The last due time for which a task was submitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<Timestamp>,
    /// How many due times had a task submitted.
    pub fired: u64,
    /// How many due times were skipped, because no process was there to fire them or because the
    /// broker refused their tasks.
    pub missed: u64,
}

/// The outcome of firing a schedule.
#[derive(Clone, Debug, PartialEq)]
pub struct FireOutcome {
    /// The new entry.
    pub entry: ScheduleEntry,
    /// The due times to submit tasks for, the earliest first.
    pub due: Vec<Timestamp>,
    /// How many due times are skipped.
    pub missed: u64,
}

impl ScheduleEntry {
    /// Creates the entry of a schedule that starts now.
    pub fn new(schedule: Schedule, zone: &TimeZone, now: Timestamp) -> Self {
        let next = series::first(&schedule, zone, now);
        Self {
            owner: None,
            paused: schedule.paused,
            schedule,
            next,
            last: None,
            fired: 0,
            missed: 0,
        }
    }

    /// Returns the entry after the schedule is written again, or `None` if nothing changed. The
    /// series continues if its times are the same, and a pause lasts until a user ends it.
    pub fn rewritten(&self, schedule: Schedule, zone: &TimeZone, now: Timestamp) -> Option<Self> {
        if schedule == self.schedule {
            return None;
        }
        let same_times = schedule.has_same_times(&self.schedule);
        let next = if same_times {
            self.next
        } else {
            series::first(&schedule, zone, now)
        };
        Some(Self {
            paused: self.paused || schedule.paused,
            schedule,
            next,
            ..self.clone()
        })
    }

    /// Returns the paused entry, or `None` if it is paused already.
    pub fn paused(&self) -> Option<Self> {
        (!self.paused).then(|| Self {
            paused: true,
            ..self.clone()
        })
    }

    /// Returns the resumed entry, or `None` if it is not paused. Due times during the pause are
    /// skipped, which is the purpose of a pause.
    pub fn resumed(&self, zone: &TimeZone, now: Timestamp) -> Option<Self> {
        if !self.paused {
            return None;
        }
        let next = match self.next {
            Some(next) if next <= now => {
                series::Series::new(&self.schedule, zone, next).and_then(|s| s.after(now))
            }
            next => next,
        };
        Some(Self {
            paused: false,
            next,
            ..self.clone()
        })
    }

    /// Returns the next due time, unless the schedule is paused or over.
    pub fn due(&self) -> Option<Timestamp> {
        self.next.filter(|_| !self.paused)
    }

    /// Returns what to submit at `now`, if anything is due. At most `most` tasks are submitted at a
    /// time; the remaining due times stay due.
    pub fn fire(&self, zone: &TimeZone, now: Timestamp, most: usize) -> Option<FireOutcome> {
        let due = self.due().filter(|due| *due <= now)?;
        let Plan { due, next, missed } = plan(&self.schedule, zone, due, now, most);
        let entry = Self {
            next,
            last: due.last().copied().or(self.last),
            fired: self.fired.saturating_add(due.len() as u64),
            missed: self.missed.saturating_add(missed),
            ..self.clone()
        };
        Some(FireOutcome { entry, due, missed })
    }

    /// Returns the entry after the broker refused the tasks of a firing: their due times count as
    /// missed, and the next due time is the same as if they had been accepted.
    pub fn refused(&self, firing: &FireOutcome) -> Self {
        let missed = self
            .missed
            .saturating_add(firing.missed)
            .saturating_add(firing.due.len() as u64);
        Self {
            next: firing.entry.next,
            missed,
            ..self.clone()
        }
    }

    /// Returns the next `count` due times.
    pub fn upcoming(&self, zone: &TimeZone, count: usize) -> Vec<Timestamp> {
        let Some(next) = self.next else {
            return Vec::new();
        };
        let Some(series) = series::Series::new(&self.schedule, zone, next) else {
            return Vec::new();
        };
        std::iter::successors(Some(next), |at| series.after(*at))
            .take(count)
            .collect()
    }
}
