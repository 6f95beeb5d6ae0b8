//! Workers as the registry reports them.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{
    CapSet, QueueName, TaskSpec, Tid,
    queue_name::{ManagerQueue, TaskQueue},
    text::{is_default, names},
};

pub mod kind;
mod pool_worker;

pub use pool_worker::PoolWorkerInfo;

/// Declaration of a worker when it registers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerInfo {
    /// Name of the worker, as in its process title.
    pub name: String,
    /// Kind of worker: one of [`kind`], or the type of a manager.
    #[serde(rename = "type")]
    pub kind: String,
    /// Capabilities that it offers.
    pub capabilities: CapSet,
    /// Queues that it serves.
    pub queues: Vec<String>,
    /// How many attempts it runs at a time.
    pub concurrency: u32,
    /// How many of these share hosts.
    #[serde(default, skip_serializing_if = "is_default")]
    pub shared: u32,
    /// Process id.
    pub pid: u32,
    /// Start time of the process in clock ticks since boot, which distinguishes processes that had
    /// the same pid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub born: Option<u64>,
    /// Host name of its machine.
    pub host: String,
    /// The pid namespace and boot in which `pid` is valid. A container may have the host name of
    /// its host and its own pids.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<String>,
    /// Declared by workers that take calls. Such a worker takes no tasks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub callee: Option<Box<PoolWorkerInfo>>,
    /// Maximum number of workers that it launches, if it is a spawner.
    #[serde(default, skip_serializing_if = "is_default")]
    pub max_workers: u32,
    /// The task that started it, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Tid>,
}

/// One entry of `raddle.workers.registry`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerEntry {
    /// Id of the worker: workers are tasks.
    pub tid: Tid,
    /// The worker's declaration.
    #[serde(flatten)]
    pub info: WorkerInfo,
    /// Current status.
    pub status: WorkerStatus,
    /// Share of its slots in use, or of the workers it may launch.
    pub load: f64,
    /// How many attempts it has started.
    pub spawned_count: u64,
    /// When it registered.
    pub started_at: Timestamp,
    /// Queue for requests to this worker: the request queue of its type if it is a manager, that of
    /// its manager if it has one, otherwise its inbox. `None` if it takes no requests.
    pub queue: Option<String>,
}

/// Report of a worker with each lease renewal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// Current status.
    pub status: WorkerStatus,
    /// Slots in use.
    pub busy: u32,
    /// Attempts started since the worker started.
    pub spawned_count: u64,
}

/// Status of a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
#[repr(u8)]
pub enum WorkerStatus {
    /// Claims tasks.
    #[default]
    Active = 0,
    /// Paused on request: claims no tasks.
    Paused = 1,
    /// Finishes its tasks and claims no more.
    Draining = 2,
    /// Would launch workers or hosts, but these fail to start at present.
    BackingOff = 3,
}

impl WorkerEntry {
    /// Creates the entry of a worker from its declaration and its last heartbeat.
    pub fn new(tid: Tid, info: WorkerInfo, heartbeat: Heartbeat, started_at: Timestamp) -> Self {
        let slots = info.concurrency.max(info.max_workers).max(1);
        let queue = match info.desk() {
            Some((queue, _)) => Some(queue.to_owned()),
            None => info
                .takes_requests()
                .then(|| QueueName::Task(tid, TaskQueue::Inbox).to_string()),
        };
        let (status, spawned_count) = (heartbeat.status, heartbeat.spawned_count);
        Self {
            tid,
            load: f64::from(heartbeat.busy) / f64::from(slots),
            info,
            status,
            spawned_count,
            started_at,
            queue,
        }
    }

    /// Returns whether the worker would claim a task with this spec now.
    pub fn would_take(&self, spec: &TaskSpec) -> bool {
        self.status.takes() && self.info.can_take(spec)
    }
}

impl WorkerInfo {
    /// Creates a declaration with only a name and a kind. The caller fills in the rest.
    pub fn new(name: impl Into<String>, kind: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            kind: kind.into(),
            capabilities: CapSet::new(),
            queues: Vec::new(),
            concurrency: 0,
            shared: 0,
            pid: 0,
            born: None,
            host: String::new(),
            place: None,
            callee: None,
            max_workers: 0,
            parent: None,
        }
    }

    /// The claim rule: returns whether the worker may claim a task with this spec.
    pub fn can_take(&self, spec: &TaskSpec) -> bool {
        !self.takes_calls()
            && self.serves(&spec.queue)
            && spec.needs().is_subset(&self.capabilities)
    }

    /// Returns whether it is a spawner, which launches workers instead of running tasks.
    pub fn launches(&self) -> bool {
        self.concurrency == 0 && !self.takes_calls()
    }

    /// Returns whether it takes calls, which bypass the broker, instead of tasks.
    pub fn takes_calls(&self) -> bool {
        self.callee.is_some()
    }

    /// Returns its request queue, if it is a manager.
    pub fn requests(&self) -> Option<&str> {
        let (queue, kind) = self.desk().filter(|_| self.launches())?;
        (kind == self.kind).then_some(queue)
    }

    /// Returns the manager request queue that it serves, and the manager type. The worker is a
    /// manager of that type, or runs tasks for one.
    pub fn desk(&self) -> Option<(&str, String)> {
        self.queues
            .iter()
            .find_map(|name| match name.parse::<QueueName>().ok()?.desk()? {
                (kind, ManagerQueue::Requests) => Some((name.as_str(), kind.to_owned())),
                _ => None,
            })
    }

    /// Returns whether messages to its inbox become tasks, which requires that it serves a queue.
    pub fn takes_requests(&self) -> bool {
        !self.takes_calls() && !self.queues.is_empty()
    }

    /// Returns whether it is a manager.
    pub fn is_manager(&self) -> bool {
        self.requests().is_some()
    }

    /// Returns whether its pid is valid on this host and in this place. If a place is unknown, the
    /// host name must do.
    pub fn is_at(&self, host: &str, place: Option<&str>) -> bool {
        self.host == host
            && self
                .place
                .as_deref()
                .zip(place)
                .is_none_or(|(its, this)| its == this)
    }

    /// Returns whether the worker serves this queue.
    pub fn serves(&self, queue: &str) -> bool {
        self.queues.iter().any(|q| q == queue)
    }
}

impl WorkerStatus {
    /// Returns the status with this number, as shared memory holds it. Unknown numbers map to the
    /// first status.
    pub fn from_u8(number: u8) -> Self {
        Self::ALL
            .get(usize::from(number))
            .copied()
            .unwrap_or_default()
    }

    /// Returns whether tasks may be routed to the worker. A spawner that backs off
    /// qualifies: it retries, and the tasks are meant to run where its workers run.
    pub fn takes(self) -> bool {
        matches!(self, Self::Active | Self::BackingOff)
    }
}

names! {
    WorkerStatus {
        Active => "active",
        Paused => "paused",
        Draining => "draining",
        BackingOff => "backing_off",
    }
}

#[cfg(test)]
mod tests;
