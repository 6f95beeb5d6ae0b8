//! A schedule as a broker keeps it, and what becomes of that: pure steps, which a broker takes if nobody has taken another before.

use jiff::{Timestamp, tz::TimeZone};
use serde::{Deserialize, Serialize};

use super::{
    Schedule,
    plan::{Plan, plan},
    series,
};

/// A schedule as a broker keeps it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// What was written.
    pub schedule: Schedule,
    /// The manager whose file has it. Without one it is somebody's who wrote it by hand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Whether it is paused.
    pub paused: bool,
    /// The next due time. Of one that is paused, what it was then; of one that is over, none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<Timestamp>,
    /// The last due time that a task was submitted for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<Timestamp>,
    /// How many due times tasks were submitted for.
    pub fired: u64,
    /// How many due times were left out because nobody was there for them, or because the broker would not have their tasks.
    pub missed: u64,
}

/// What firing comes to.
#[derive(Clone, Debug, PartialEq)]
pub struct Firing {
    /// The entry from then on.
    pub entry: Entry,
    /// The due times to submit a task for, the earliest first.
    pub due: Vec<Timestamp>,
    /// How many are left out.
    pub missed: u64,
}

impl Entry {
    /// A schedule that begins now.
    pub fn new(schedule: Schedule, zone: &TimeZone, now: Timestamp) -> Self {
        let next = series::first(&schedule, zone, now);
        Self { owner: None, paused: schedule.paused, schedule, next, last: None, fired: 0, missed: 0 }
    }

    /// What it becomes when it is written anew; nothing if it says the same. The series goes on if its times are the same, and a pause holds
    /// until somebody ends it.
    pub fn rewritten(&self, schedule: Schedule, zone: &TimeZone, now: Timestamp) -> Option<Self> {
        if schedule == self.schedule {
            return None;
        }
        let keeps_time = schedule.keeps_time_of(&self.schedule);
        let next = if keeps_time { self.next } else { series::first(&schedule, zone, now) };
        Some(Self { paused: self.paused || schedule.paused, schedule, next, ..self.clone() })
    }

    /// What it becomes when it is paused; nothing if it is already.
    pub fn paused(&self) -> Option<Self> {
        (!self.paused).then(|| Self { paused: true, ..self.clone() })
    }

    /// What it becomes when it goes on; nothing if it is not paused. What was due meanwhile is left out: that is what a pause is for.
    pub fn resumed(&self, zone: &TimeZone, now: Timestamp) -> Option<Self> {
        if !self.paused {
            return None;
        }
        let next = match self.next {
            Some(next) if next <= now => series::Series::new(&self.schedule, zone, next).and_then(|s| s.after(now)),
            next => next,
        };
        Some(Self { paused: false, next, ..self.clone() })
    }

    /// When it is due, if it is ever.
    pub fn due(&self) -> Option<Timestamp> {
        self.next.filter(|_| !self.paused)
    }

    /// What is to be done at this time, if something is. No more than `most` tasks are submitted at a time; the rest is due at once.
    pub fn fire(&self, zone: &TimeZone, now: Timestamp, most: usize) -> Option<Firing> {
        let due = self.due().filter(|due| *due <= now)?;
        let Plan { due, next, missed } = plan(&self.schedule, zone, due, now, most);
        let entry = Self {
            next,
            last: due.last().copied().or(self.last),
            fired: self.fired.saturating_add(due.len() as u64),
            missed: self.missed.saturating_add(missed),
            ..self.clone()
        };
        Some(Firing { entry, due, missed })
    }

    /// What it becomes when the tasks of a firing were refused: their due times are left out as well, and it is due again when it would have been.
    pub fn refused(&self, firing: &Firing) -> Self {
        let missed = self.missed.saturating_add(firing.missed).saturating_add(firing.due.len() as u64);
        Self { next: firing.entry.next, missed, ..self.clone() }
    }

    /// The next due times, as they would be fired.
    pub fn upcoming(&self, zone: &TimeZone, count: usize) -> Vec<Timestamp> {
        let Some(next) = self.next else { return Vec::new() };
        let Some(series) = series::Series::new(&self.schedule, zone, next) else { return Vec::new() };
        std::iter::successors(Some(next), |at| series.after(*at)).take(count).collect()
    }
}
