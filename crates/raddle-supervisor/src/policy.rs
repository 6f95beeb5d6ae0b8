//! How the children of a group are treated.

use std::time::Duration;

use raddle_model::{jitter::unit_interval, stop::StopPolicy};
use serde::{Deserialize, Serialize};

use crate::GroupId;

/// Default number of children of a group that start at a time.
pub const PARALLEL: usize = 16;

/// How the children of a group are treated.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupPolicy {
    /// Desired number of children.
    pub replicas: usize,
    /// Whether the group is switched on.
    pub on: bool,
    /// Reaction to a child that exits by itself.
    pub restart: RestartPolicy,
    /// How a child is stopped: how long it may finish its work, and how long it may take to exit
    /// after a cancel.
    pub stop: StopPolicy,
    /// How long a child may take to become ready. `None` means no limit: the caller that starts it
    /// enforces one.
    pub start_timeout: Option<Duration>,
    /// How long a child may send no heartbeat, or stay suspended, before it counts as hung. `None`
    /// disables the check.
    pub hang_timeout: Option<Duration>,
    /// When a healthy child is replaced.
    pub recycle: RecyclePolicy,
    /// Groups that must be up before the first child is started.
    pub after: Vec<GroupId>,
    /// How many children may be starting at a time, so that they do not overload the machine. At
    /// least one.
    pub parallel: usize,
    /// Scope of the backoff when children die right after their start.
    pub backoff_scope: BackoffScope,
}

/// Scope of the backoff when children die right after their start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BackoffScope {
    /// The next start in the same slot.
    #[default]
    Slot,
    /// The next start of the whole group: its children are alike and die of the same cause. After a
    /// pause one child is started as a probe.
    Group,
}

/// Reaction to a child that exits by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RestartPolicy {
    /// It is replaced.
    #[default]
    Always,
    /// It is replaced if it failed.
    OnFailure,
    /// Its slot stays empty.
    Never,
    /// Its slot goes away with it. The desired number only holds until it is reached: children come
    /// and go by themselves, and scaling down stops none. A successful exit soon after the start is
    /// normal. Further children start when more are requested.
    #[serde(skip)]
    OnDemand,
}

/// When a healthy child is replaced.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RecyclePolicy {
    /// After this many tasks. An upper bound, also with [`jitter`](Self::jitter).
    pub tasks: Option<u64>,
    /// At this age.
    pub age: Option<Duration>,
    /// At this resident set size in bytes.
    pub rss: Option<u64>,
    /// By which share each limit varies between children, so that they are not all recycled
    /// together.
    pub jitter: f64,
}

impl RecyclePolicy {
    /// Returns the limits of one child, with jitter applied.
    pub(crate) fn for_child(self, number: u64) -> Self {
        let chance = unit_interval(number);
        let factor = 1.0 + self.jitter * (2.0 * chance - 1.0);
        let scale = |bound: u64, factor: f64| ((bound as f64 * factor) as u64).max(1);
        Self {
            tasks: self
                .tasks
                .map(|tasks| scale(tasks, 1.0 - self.jitter * chance)),
            age: self.age.map(|age| age.mul_f64(factor)),
            rss: self.rss.map(|rss| scale(rss, factor)),
            jitter: 0.0,
        }
    }
}
