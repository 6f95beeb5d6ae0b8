//! Workers as the registry shows them.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{
    CapSet, QueueName, Spec, Tid,
    queue_name::{Desk, Port},
    text::{is_default, names},
};

mod callee;
pub mod kind;

pub use callee::Callee;

/// What a worker says of itself when it registers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerInfo {
    /// Its name, as in its title.
    pub name: String,
    /// What sort of worker it is: one of [`kind`], or the type of a manager.
    #[serde(rename = "type")]
    pub kind: String,
    /// What it offers.
    pub capabilities: CapSet,
    /// The queues it serves.
    pub queues: Vec<String>,
    /// How many attempts it runs at once.
    pub concurrency: u32,
    /// Its process.
    pub pid: u32,
    /// When that began, in ticks of the machine's clock since it was started: tells two processes apart that have had one number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub born: Option<u64>,
    /// The machine it is on.
    pub host: String,
    /// Where its process has that number: a boot of a machine, and what of it shares numbers. Containers may have the name of their host, and numbers of their
    /// own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<String>,
    /// What it says to callers, if it takes calls. Then it takes no tasks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub callee: Option<Box<Callee>>,
    /// How many workers it has at most, if it launches them.
    #[serde(default, skip_serializing_if = "is_default")]
    pub max_workers: u32,
    /// The task that has started it, if one has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Tid>,
}

/// One entry of `raddle.workers.registry`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerEntry {
    /// The worker's own id: workers are tasks.
    pub tid: Tid,
    /// What it said of itself.
    #[serde(flatten)]
    pub info: WorkerInfo,
    /// What it is doing.
    pub status: WorkerStatus,
    /// The share of its slots in use, or of the workers it may have.
    pub load: f64,
    /// How many attempts it has begun.
    pub spawned_count: u64,
    /// When it registered.
    pub started_at: Timestamp,
    /// Where it is asked for tasks: in the requests of its type if it is a manager, or in those of its manager if it has one, otherwise in its inbox. Nowhere,
    /// if it takes no requests.
    pub queue: Option<String>,
}

/// What a worker tells with each renewal of its lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Beat {
    /// What it is doing.
    pub status: WorkerStatus,
    /// Slots in use.
    pub busy: u32,
    /// Attempts begun since it started.
    pub spawned_count: u64,
}

/// What a worker is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
#[repr(u8)]
pub enum WorkerStatus {
    /// Taking tasks.
    #[default]
    Active = 0,
    /// Told to take none for now.
    Paused = 1,
    /// Finishing what it has.
    Draining = 2,
    /// It would launch workers for tasks, and those cannot start at present.
    Braking = 3,
}

impl WorkerEntry {
    /// A worker that said this of itself when it registered, and last that.
    pub fn new(tid: Tid, info: WorkerInfo, beat: Beat, started_at: Timestamp) -> Self {
        let slots = info.concurrency.max(info.max_workers).max(1);
        let queue = match info.desk() {
            Some((queue, _)) => Some(queue.to_owned()),
            None => info.takes_requests().then(|| QueueName::Task(tid, Port::Inbox).to_string()),
        };
        let (status, spawned_count) = (beat.status, beat.spawned_count);
        Self { tid, load: f64::from(beat.busy) / f64::from(slots), info, status, spawned_count, started_at, queue }
    }

    /// Whether the worker would take a task with this spec now.
    pub fn would_take(&self, spec: &Spec) -> bool {
        self.status.takes() && self.info.can_take(spec)
    }
}

impl WorkerInfo {
    /// A worker that says nothing of itself yet but what it is. Whoever registers one says the rest.
    pub fn new(name: impl Into<String>, kind: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            kind: kind.into(),
            capabilities: CapSet::new(),
            queues: Vec::new(),
            concurrency: 0,
            pid: 0,
            born: None,
            host: String::new(),
            place: None,
            callee: None,
            max_workers: 0,
            parent: None,
        }
    }

    /// The claim rule: whether the worker may take a task with this spec.
    pub fn can_take(&self, spec: &Spec) -> bool {
        !self.takes_calls() && self.serves(&spec.queue) && spec.needs().is_subset(&self.capabilities)
    }

    /// Whether it runs nothing itself, and launches workers that do: a spawner.
    pub fn launches(&self) -> bool {
        self.concurrency == 0 && !self.takes_calls()
    }

    /// Whether it is there for calls, which no broker has to do with, and not for tasks.
    pub fn takes_calls(&self) -> bool {
        self.callee.is_some()
    }

    /// Where it is asked for tasks, if it is a manager.
    pub fn requests(&self) -> Option<&str> {
        let (queue, kind) = self.desk().filter(|_| self.launches())?;
        (kind == self.kind).then_some(queue)
    }

    /// The queue of requests to managers that it serves, and their type: it is one of them, or runs what one is asked for.
    pub fn desk(&self) -> Option<(&str, String)> {
        self.queues.iter().find_map(|name| match name.parse::<QueueName>().ok()?.desk()? {
            (kind, Desk::Requests) => Some((name.as_str(), kind.to_owned())),
            _ => None,
        })
    }

    /// Whether what is written to its inbox becomes a task: then there is a queue for that.
    pub fn takes_requests(&self) -> bool {
        !self.takes_calls() && !self.queues.is_empty()
    }

    /// Whether it is a manager, which is asked for tasks.
    pub fn is_manager(&self) -> bool {
        self.requests().is_some()
    }

    /// Whether its process can be looked at by its number on this host and in this place. Of one that does not say its place, the host has to do.
    pub fn is_at(&self, host: &str, place: Option<&str>) -> bool {
        self.host == host && self.place.as_deref().zip(place).is_none_or(|(its, this)| its == this)
    }

    /// Whether the worker serves this queue.
    pub fn serves(&self, queue: &str) -> bool {
        self.queues.iter().any(|q| q == queue)
    }
}

impl WorkerStatus {
    /// The status with this number, as it is kept where processes share it. One that nobody has is the first.
    pub fn from_u8(number: u8) -> Self {
        Self::ALL.get(usize::from(number)).copied().unwrap_or_default()
    }

    /// Whether tasks can be left to it. To one that brakes they can: it tries again, and where its workers run is where they are meant to run.
    pub fn takes(self) -> bool {
        matches!(self, Self::Active | Self::Braking)
    }
}

names! {
    WorkerStatus {
        Active => "active",
        Paused => "paused",
        Draining => "draining",
        Braking => "braking",
    }
}

#[cfg(test)]
mod tests;
