//! How the children of a group are treated.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::GroupId;
use crate::{chance::unit_interval, stop::StopPolicy};

/// How many children of a group are started at a time where nothing else is said.
pub const PARALLEL: usize = 16;

/// How the children of a group are treated.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// How many there are.
    pub replicas: usize,
    /// Whether there are any.
    pub on: bool,
    /// What follows when one ends by itself.
    pub restart: Restart,
    /// How one is stopped: how long it may finish what it does, and how long it may take to end after that is cancelled.
    pub stop: StopPolicy,
    /// How long one may take until it is ready. As long as it does, if nothing is said: then whoever starts it sees to it.
    pub start_within: Option<Duration>,
    /// How long one may show no progress, or stand still, before it counts as hung. If nothing is said, nobody looks whether it gets on.
    pub patience: Option<Duration>,
    /// When one is replaced although nothing is wrong with it.
    pub recycle: Recycle,
    /// The groups that have to be up before the first is started.
    pub after: Vec<GroupId>,
    /// How many of them may be starting at a time: so that many do not all want the machine at once. At least one.
    pub parallel: usize,
    /// Who is held back when children die as soon as they are started.
    pub brake: Braking,
}

/// Who is held back when children die as soon as they are started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Braking {
    /// The next in the same seat.
    #[default]
    Seat,
    /// The next of the group: they are all alike, and what one dies of the others do. After a pause one is tried before there are more.
    Group,
}

/// What follows when a child ends by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Restart {
    /// Another takes its place.
    #[default]
    Always,
    /// Another takes its place if it failed.
    OnFailure,
    /// Its place stays empty.
    Never,
    /// Its place is gone with it. There are to be so many only until they are there: children come and go by themselves, none is ended because there
    /// are fewer to be, and that one ends well soon after it was ready says nothing. Others come when more are asked for.
    #[serde(skip)]
    OnDemand,
}

/// When a child is replaced although nothing is wrong with it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Recycle {
    /// After so many tasks: no more than these, with or without [`jitter`](Self::jitter).
    pub tasks: Option<u64>,
    /// At this age.
    pub age: Option<Duration>,
    /// When it has so many bytes in memory.
    pub rss: Option<u64>,
    /// By how much each of these may be different for each child, as a share of it: so that they do not all go at once.
    pub jitter: f64,
}

impl Recycle {
    /// The bounds of one child.
    pub(super) fn for_child(self, number: u64) -> Self {
        let chance = unit_interval(number);
        let factor = 1.0 + self.jitter * (2.0 * chance - 1.0);
        let scale = |bound: u64, factor: f64| ((bound as f64 * factor) as u64).max(1);
        Self {
            tasks: self.tasks.map(|tasks| scale(tasks, 1.0 - self.jitter * chance)),
            age: self.age.map(|age| age.mul_f64(factor)),
            rss: self.rss.map(|rss| scale(rss, factor)),
            jitter: 0.0,
        }
    }
}
