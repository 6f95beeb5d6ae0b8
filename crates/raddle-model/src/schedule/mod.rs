//! Recurring tasks: when they are due, and which task a due time creates.
//!
//! A [`Schedule`] is what users write. A [`ScheduleEntry`] is what a broker stores: the schedule
//! and its next due time. The firing process takes that due time and stores the following one in
//! the same step. So each due time fires once, however many processes watch the schedule, and even
//! if they disagree on the rules of a time zone. The due times are a pure function of schedule,
//! zone and time.

mod calendar;
mod cron;
mod entry;
mod new_schedule;
mod parse;
mod plan;
mod series;
mod validate;

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{HumanDuration, TaskSpec, jitter::unit_interval, time::unix_nanos};

pub use cron::{Cron, ParseCronError};
pub use entry::{FireOutcome, ScheduleEntry};
pub use new_schedule::NewSchedule;
pub use plan::{CATCH_UP, PUNCTUAL};
pub use validate::{is_slug, known_zone};

/// Metadata key of a task that holds the name of its schedule.
pub const SCHEDULE_KEY: &str = "schedule";
/// Metadata key of a task that holds its due time.
pub const DUE_KEY: &str = "due";
/// Environment variable with the name of the schedule.
pub const SCHEDULE_VARIABLE: &str = "RADDLE_SCHEDULE";
/// Environment variable with the due time of the task.
pub const DUE_VARIABLE: &str = "RADDLE_DUE";
/// Time zone of schedules that name none.
pub const DEFAULT_ZONE: &str = "UTC";

/// A recurring task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Schedule {
    /// Name: 1 to 64 letters, digits, or `.` `_` `-`.
    pub name: String,
    /// Interval between due times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every: Option<HumanDuration>,
    /// Due times as a cron expression.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cron: Option<Cron>,
    /// IANA name of the time zone of the cron expression; UTC when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timezone: Option<String>,
    /// Nothing is due before this. With `every`, it is the first due time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<Timestamp>,
    /// How due times are treated that passed while no process could fire them.
    #[serde(default, skip_serializing_if = "MissedPolicy::is_one")]
    pub missed: MissedPolicy,
    /// How long after its due time a worker may still claim the task. After that the task expires
    /// and never runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifetime: Option<HumanDuration>,
    /// Each task starts up to this much later, pseudo-randomly, so that schedules with equal times
    /// do not start together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jitter: Option<HumanDuration>,
    /// Whether the schedule starts paused.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
    /// The task to submit.
    #[serde(deserialize_with = "crate::spec::table::only")]
    pub task: TaskSpec,
}

/// How due times are treated that passed while no process could fire them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MissedPolicy {
    /// Skip them, and wait for the next due time.
    Skip,
    /// Submit one task for all of them.
    #[default]
    One,
    /// Submit a task for each, but at most for the last [`CATCH_UP`].
    All,
}

impl Schedule {
    /// Starts a schedule that is due at this interval. Add a task to complete it.
    pub fn every(name: impl Into<String>, every: Duration) -> NewSchedule {
        NewSchedule::every(name.into(), every)
    }

    /// Starts a schedule that is due by a cron expression. Add a task to complete it.
    pub fn cron(name: impl Into<String>, cron: &str) -> NewSchedule {
        NewSchedule::cron(name.into(), cron)
    }

    /// Returns the name of the time zone.
    pub fn zone(&self) -> &str {
        self.timezone.as_deref().unwrap_or(DEFAULT_ZONE)
    }

    /// Builds the task for a due time.
    pub fn task_for(&self, due: Timestamp) -> TaskSpec {
        let mut spec = self.task.clone();
        spec.name.get_or_insert_with(|| self.name.clone());
        spec.run_at = self
            .jitter
            .and_then(|jitter| due.checked_add(self.jitter_delay(due, jitter.0)).ok());
        spec.run_before = self
            .lifetime
            .map(|lifetime| due.checked_add(lifetime.0).unwrap_or(Timestamp::MAX));
        spec.metadata
            .insert(SCHEDULE_KEY.into(), self.name.clone().into());
        spec.metadata.insert(DUE_KEY.into(), due.to_string().into());
        spec.env.insert(SCHEDULE_VARIABLE.into(), self.name.clone());
        spec.env.insert(DUE_VARIABLE.into(), due.to_string());
        spec
    }

    /// Returns the delay of a due time, from zero up to `jitter`. It is always the same for one due
    /// time.
    fn jitter_delay(&self, due: Timestamp, jitter: Duration) -> Duration {
        let name = self
            .name
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
            });
        jitter.mul_f64(unit_interval(name ^ unix_nanos(due) as u64))
    }

    /// Returns whether both schedules have the same due times.
    fn has_same_times(&self, other: &Self) -> bool {
        (self.every, &self.cron, self.zone(), self.start)
            == (other.every, &other.cron, other.zone(), other.start)
    }
}

impl MissedPolicy {
    /// Returns the name, as in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Skip => "skip",
            Self::One => "one",
            Self::All => "all",
        }
    }

    fn is_one(&self) -> bool {
        *self == Self::One
    }
}

#[cfg(test)]
mod tests;
