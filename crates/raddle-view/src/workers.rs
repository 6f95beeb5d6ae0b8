//! Live workers by host, with what they run.

use std::collections::BTreeMap;

use raddle_broker::{Broker, TaskFilter};
use raddle_client::explain::busy_slots;
use raddle_model::{TaskState, TaskView, Tid, WorkerEntry};
use serde::Serialize;

use crate::Result;

/// How many running tasks are looked at.
const MAX_LOOKED_AT: u32 = 10_000;

/// The live workers of one host.
#[derive(Clone, Debug, Serialize)]
pub struct HostWorkers {
    /// The host name.
    pub host: String,
    /// The number of slots of its workers.
    pub slots: u64,
    /// How many of these are in use.
    pub busy: u64,
    /// The number of workers of each type.
    pub types: BTreeMap<String, u64>,
    /// The workers, by type and age.
    pub workers: Vec<WorkerState>,
}

/// A live worker.
#[derive(Clone, Debug, Serialize)]
pub struct WorkerState {
    /// Its registration.
    #[serde(flatten)]
    pub entry: WorkerEntry,
    /// How many of its slots are in use.
    pub busy: u32,
    /// The tasks that it holds.
    pub tasks: Vec<HeldTask>,
}

/// A task that a worker holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HeldTask {
    /// The task.
    pub tid: Tid,
    /// Its name.
    pub name: String,
    /// Its state.
    pub state: TaskState,
}

/// Reads the live workers.
pub async fn list_workers(broker: &dyn Broker) -> Result<Vec<HostWorkers>> {
    let filter = TaskFilter {
        states: vec![TaskState::Spawning, TaskState::Running],
        limit: MAX_LOOKED_AT,
        ..TaskFilter::default()
    };
    let tasks = broker.tasks(filter).await?;
    Ok(group_by_host(broker.workers().await?, &tasks))
}

/// Groups workers by host, with those of these tasks that they hold.
pub fn group_by_host(workers: Vec<WorkerEntry>, tasks: &[TaskView]) -> Vec<HostWorkers> {
    let mut held: BTreeMap<Tid, Vec<HeldTask>> = BTreeMap::new();
    for task in tasks {
        if let Some(worker) = task.worker.filter(|_| task.state.is_active()) {
            held.entry(worker).or_default().push(HeldTask {
                tid: task.tid,
                name: task.spec.display_name().into(),
                state: task.state,
            });
        }
    }
    let mut hosts: BTreeMap<String, Vec<WorkerState>> = BTreeMap::new();
    for entry in workers {
        let worker = WorkerState {
            busy: busy_slots(&entry),
            tasks: held.remove(&entry.tid).unwrap_or_default(),
            entry,
        };
        let host = worker.entry.info.host.clone();
        hosts.entry(host).or_default().push(worker);
    }
    let hosts = hosts.into_iter().map(|(host, mut workers)| {
        workers.sort_by(|a, b| {
            let key = |it: &WorkerState| (it.entry.info.kind.clone(), it.entry.tid);
            key(a).cmp(&key(b))
        });
        let mut types = BTreeMap::new();
        for worker in &workers {
            *types.entry(worker.entry.info.kind.clone()).or_default() += 1;
        }
        HostWorkers {
            host,
            slots: sum(&workers, |worker| worker.entry.info.concurrency),
            busy: sum(&workers, |worker| worker.busy),
            types,
            workers,
        }
    });
    hosts.collect()
}

fn sum(workers: &[WorkerState], number: impl Fn(&WorkerState) -> u32) -> u64 {
    workers.iter().map(|worker| u64::from(number(worker))).sum()
}
