//! What goes in and out of a broker that keeps schedules. Plain values that can be sent over a socket.
//!
//! A broker knows nothing of due times but when they are. There is one step: a schedule is changed if it is still as it was seen, and tasks
//! are submitted with that, or nothing is. Whoever fires a due time stores the next one in this way, so that it is fired once.

use jiff::Timestamp;
use raddle_model::{
    Tid,
    schedule::{ScheduleEntry, is_slug},
    spec::InvalidSpec,
};
use serde::{Deserialize, Serialize};

use crate::{
    Error, Result,
    request::{NewTask, Submitted},
};

/// A schedule as it stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScheduleView {
    /// Another one with every change.
    pub version: Tid,
    /// The last task that was submitted for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<Tid>,
    /// What is kept of it.
    #[serde(flatten)]
    pub entry: ScheduleEntry,
}

/// A change of one schedule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScheduleChange {
    /// Its name.
    pub name: String,
    /// The version that the change was decided from; nothing, if there was no such schedule.
    pub seen: Option<Tid>,
    /// What it is from now on; nothing, if it is removed.
    pub entry: Option<ScheduleEntry>,
    /// Tasks that are submitted with the change.
    pub tasks: Vec<NewTask>,
    /// The broker's clock must have come to this.
    pub due: Option<Timestamp>,
}

/// What came of a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ScheduleChangeOutcome {
    /// It is made.
    Made {
        /// The version from now on.
        version: Tid,
        /// What became of the tasks, in their order.
        submitted: Vec<Submitted>,
    },
    /// The schedule is not as it was seen any more. Nothing was done.
    Raced,
    /// By the broker's clock it is not due yet. Nothing was done.
    Early,
}

/// What is to be done about schedules and lifetimes at a moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DueItems {
    /// The moment, by the broker's clock.
    pub now: Timestamp,
    /// Schedules that are due, the first of them first; some, if they are many.
    pub due: Vec<ScheduleView>,
    /// How many tasks had expired, and were ended with this call.
    pub expired: u64,
}

/// How many schedules an [`DueItems`] has at most.
pub const AGENDA: usize = 64;
/// How many expired tasks one call ends at most.
pub const EXPIRED_AT_ONCE: usize = 256;

impl DueItems {
    /// Whether nothing is due and nothing has expired.
    pub fn is_empty(&self) -> bool {
        self.due.is_empty() && self.expired == 0
    }
}

impl ScheduleChange {
    /// Checks a change before it costs anybody a transaction, and writes the entry out as engines store it.
    pub fn written(&self) -> Result<Option<String>> {
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
            return wrong("name", "is not that of the schedule");
        }
        entry.schedule.validate()?;
        Ok(Some(
            serde_json::to_string(entry).expect("an entry has only string keys"),
        ))
    }
}

/// A stored entry. One that cannot be read was made by a later version, and is left to that.
pub fn read_entry(name: &str, version: Tid, task: Option<Tid>, text: &str) -> Option<ScheduleView> {
    match serde_json::from_str(text) {
        Ok(entry) => Some(ScheduleView {
            version,
            task,
            entry,
        }),
        Err(error) => {
            tracing::debug!(schedule = name, %error, "a schedule cannot be read here");
            None
        }
    }
}
