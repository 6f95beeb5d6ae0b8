//! Arguments and results of the methods for schedules.
//!
//! A broker only stores due times; the scheduler computes them. The one operation is
//! compare-and-set: a schedule is changed if its version is the expected one, and tasks are
//! submitted in the same transaction. The scheduler that fires a due time stores the next one in
//! this way, so each due time is fired once.

use jiff::Timestamp;
use raddle_model::{
    Tid,
    schedule::{ScheduleEntry, is_slug},
    spec::InvalidSpec,
};
use serde::{Deserialize, Serialize};

use crate::{Error, NewTask, Result, Submitted};

/// A stored schedule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScheduleView {
    /// Changes with every write.
    pub version: Tid,
    /// The last task that was submitted by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<Tid>,
    /// The definition and its due time.
    #[serde(flatten)]
    pub entry: ScheduleEntry,
}

/// A compare-and-set of one schedule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScheduleChange {
    /// The name.
    pub name: String,
    /// The version that must be stored now; `None` if no such schedule may exist.
    pub expected: Option<Tid>,
    /// The new definition; `None` to remove the schedule.
    pub entry: Option<ScheduleEntry>,
    /// Tasks to submit in the same transaction.
    pub tasks: Vec<NewTask>,
    /// Refuse the change before this time by the broker's clock.
    pub due: Option<Timestamp>,
}

/// The outcome of a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ScheduleChangeOutcome {
    /// It was made.
    Applied {
        /// The new version.
        version: Tid,
        /// The outcomes of the submissions, in order.
        submitted: Vec<Submitted>,
    },
    /// The version is not the expected one. Nothing was done.
    Conflict,
    /// Not due yet by the broker's clock. Nothing was done.
    NotDue,
}

/// Schedules that are due, and tasks that expired.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DueItems {
    /// The time, by the broker's clock.
    pub now: Timestamp,
    /// Due schedules, earliest first, a limited number.
    pub due: Vec<ScheduleView>,
    /// The number of expired tasks that this call ended.
    pub expired: u64,
}

/// The most schedules in one [`DueItems`].
pub const MAX_DUE: usize = 64;
/// The most expired tasks that one call ends.
pub const MAX_EXPIRED: usize = 256;

impl DueItems {
    /// Whether nothing is due and nothing has expired.
    pub fn is_empty(&self) -> bool {
        self.due.is_empty() && self.expired == 0
    }
}

impl ScheduleChange {
    /// Validates the change before a transaction is begun for it, and serialises the entry as
    /// engines store it.
    pub fn serialize_entry(&self) -> Result<Option<String>> {
        let wrong = |path: &'static str, reason: &str| {
            Err(Error::Invalid(InvalidSpec {
                path: path.into(),
                reason: reason.into(),
            }))
        };
        if !is_slug(&self.name) {
            return wrong("name", "must be 1 to 64 letters, digits, or . _ -");
        }
        let Some(entry) = &self.entry else {
            return Ok(None);
        };
        if entry.schedule.name != self.name {
            return wrong("name", "differs from the name in the schedule");
        }
        entry.schedule.validate()?;
        Ok(Some(
            serde_json::to_string(entry).expect("an entry has only string keys"),
        ))
    }
}

/// Parses a stored entry. `None` for an entry that a newer version wrote.
pub fn parse_entry(
    name: &str,
    version: Tid,
    task: Option<Tid>,
    text: &str,
) -> Option<ScheduleView> {
    match serde_json::from_str(text) {
        Ok(entry) => Some(ScheduleView {
            version,
            task,
            entry,
        }),
        Err(error) => {
            tracing::debug!(schedule = name, %error, "skipping a schedule that this version cannot read");
            None
        }
    }
}
