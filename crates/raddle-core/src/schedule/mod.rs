//! Tasks that come again and again: when they are due, and what is made of a due time.
//!
//! A [`Schedule`] is what people write. An [`Entry`] is what a broker keeps of one: the schedule, and the next due time. Whoever fires takes
//! that due time and stores the following one in the same step, so that each is taken once, however many look at it, and also if they
//! disagree on the rules of a time zone. Which due times there are is a pure function of schedule, zone and time.

mod calendar;
mod cron;
mod draft;
mod entry;
mod parse;
mod plan;
mod series;
mod validate;

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{Span, Spec, chance::unit_interval, moment::unix_nanos};

pub use cron::{Cron, ParseCronError};
pub use draft::Draft;
pub use entry::{Entry, Firing};
pub use plan::{CATCH_UP, PUNCTUAL};
pub use validate::{is_slug, known_zone};

/// Where the metadata of a task names the schedule that it comes from, and the time that it was due. Where both are in its environment.
pub const SCHEDULE_KEY: &str = "schedule";
/// See [`SCHEDULE_KEY`].
pub const DUE_KEY: &str = "due";
/// The name of the schedule, in the environment of its tasks.
pub const SCHEDULE_VARIABLE: &str = "RADDLE_SCHEDULE";
/// When the task was due, in its environment.
pub const DUE_VARIABLE: &str = "RADDLE_DUE";
/// The zone of schedules that name none.
pub const DEFAULT_ZONE: &str = "UTC";

/// When a task is to be submitted, again and again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Schedule {
    /// What it is called: 1 to 64 letters, digits, or `.` `_` `-`.
    pub name: String,
    /// So often.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every: Option<Span>,
    /// At these times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cron: Option<Cron>,
    /// The zone that those are in, by its IANA name; UTC when this is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timezone: Option<String>,
    /// Nothing is due before this. What comes every so often is due then for the first time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<Timestamp>,
    /// What becomes of due times that nobody was there for.
    #[serde(default, skip_serializing_if = "Missed::is_one")]
    pub missed: Missed,
    /// How long after its due time a task may still be taken by a worker. After that it expires, and is never run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifetime: Option<Span>,
    /// Each task begins up to so much later, by chance, so that many schedules of one time do not begin at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jitter: Option<Span>,
    /// Whether it is paused from the beginning.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
    /// What is submitted.
    #[serde(deserialize_with = "crate::spec::table::only")]
    pub task: Spec,
}

/// What becomes of due times that nobody was there for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Missed {
    /// Nothing: the next one is the next that comes.
    Skip,
    /// One task stands for all of them.
    #[default]
    One,
    /// A task for each, but for no more than the last [`CATCH_UP`].
    All,
}

impl Schedule {
    /// A schedule that is due so often, once it has a task.
    pub fn every(name: impl Into<String>, every: Duration) -> Draft {
        Draft::every(name.into(), every)
    }

    /// A schedule that is due at the times of a cron expression, once it has a task.
    pub fn cron(name: impl Into<String>, cron: &str) -> Draft {
        Draft::cron(name.into(), cron)
    }

    /// The name of its zone.
    pub fn zone(&self) -> &str {
        self.timezone.as_deref().unwrap_or(DEFAULT_ZONE)
    }

    /// The task for a due time.
    pub fn task_for(&self, due: Timestamp) -> Spec {
        let mut spec = self.task.clone();
        spec.name.get_or_insert_with(|| self.name.clone());
        spec.run_at = self.jitter.and_then(|jitter| due.checked_add(self.chance(due, jitter.0)).ok());
        spec.run_before = self.lifetime.map(|lifetime| due.checked_add(lifetime.0).unwrap_or(Timestamp::MAX));
        spec.metadata.insert(SCHEDULE_KEY.into(), self.name.clone().into());
        spec.metadata.insert(DUE_KEY.into(), due.to_string().into());
        spec.env.insert(SCHEDULE_VARIABLE.into(), self.name.clone());
        spec.env.insert(DUE_VARIABLE.into(), due.to_string());
        spec
    }

    /// What chance makes of the jitter, always the same for one due time.
    fn chance(&self, due: Timestamp, jitter: Duration) -> Duration {
        let name = self
            .name
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        jitter.mul_f64(unit_interval(name ^ unix_nanos(due) as u64))
    }

    /// Whether another is due at the same times.
    fn keeps_time_of(&self, other: &Self) -> bool {
        (self.every, &self.cron, self.zone(), self.start) == (other.every, &other.cron, other.zone(), other.start)
    }
}

impl Missed {
    /// The name, as in JSON.
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
