//! Queues of tasks: what waits in each, which workers can take it, and why it does not move.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use raddle_broker::{Broker, TaskFilter};
use raddle_client::explain::{WaitReason, explain_ready_task};
use raddle_model::{TaskState, TaskView, Tid, WorkerEntry};
use serde::Serialize;

use crate::{Result, select::UNFINISHED};

/// How many unfinished tasks are looked at for needs, progress and age.
pub const MAX_LOOKED_AT: u32 = 10_000;
/// The most distinct needs that are listed for a queue.
const MAX_NEEDS: usize = 50;

/// All queues that have unfinished tasks, or that a worker serves.
#[derive(Clone, Debug, Default, Serialize)]
pub struct QueueList {
    /// The queues by name.
    pub items: Vec<QueueState>,
    /// How many unfinished tasks were looked at.
    pub looked_at: u64,
    /// Whether these were all. Otherwise `running`, `delayed`, `paused`, `oldest` and `needs` are
    /// those of the newest tasks.
    pub complete: bool,
}

/// A queue of tasks.
#[derive(Clone, Debug, Default, Serialize)]
pub struct QueueState {
    /// The name.
    pub queue: String,
    /// The number of tasks that could be claimed now.
    pub ready: u64,
    /// The number of tasks that wait for a time.
    pub delayed: u64,
    /// The number of paused tasks.
    pub paused: u64,
    /// The number of tasks that workers hold.
    pub running: u64,
    /// When the oldest ready task was submitted.
    pub oldest: Option<Timestamp>,
    /// How long it has waited.
    pub oldest_wait_seconds: Option<f64>,
    /// The number of live workers that serve the queue.
    pub workers: u64,
    /// The distinct needs of its ready tasks.
    pub needs: Vec<QueueNeed>,
    /// Why ready tasks are not claimed, for those that wait for an operator.
    pub stuck: Vec<StuckTasks>,
}

/// Ready tasks with the same needs.
#[derive(Clone, Debug, Serialize)]
pub struct QueueNeed {
    /// The capabilities that a worker must have.
    pub needs: Vec<String>,
    /// The number of tasks.
    pub tasks: u64,
    /// The number of live workers that can take them.
    pub able: u64,
    /// Those of these workers that have a free slot.
    pub free: u64,
}

/// Ready tasks that no worker takes.
#[derive(Clone, Debug, Serialize)]
pub struct StuckTasks {
    /// The number of tasks.
    pub tasks: u64,
    /// One of them.
    pub sample: Tid,
    /// Why, for people.
    pub explanation: String,
    /// The fix.
    pub hint: Option<String>,
    /// Why.
    #[serde(flatten)]
    pub reason: WaitReason,
}

impl QueueList {
    /// Reads the queues.
    pub async fn read(broker: &dyn Broker) -> Result<Self> {
        let filter = TaskFilter {
            states: UNFINISHED.to_vec(),
            limit: MAX_LOOKED_AT,
            ..TaskFilter::default()
        };
        let tasks = broker.tasks(filter).await?;
        let workers = broker.workers().await?;
        let mut list = Self::new(&tasks, &workers, Timestamp::now());
        if !list.complete {
            // The counts of the broker are of all tasks.
            for (name, ready) in broker.summary().await?.ready {
                list.queue(&name).ready = ready;
            }
        }
        Ok(list)
    }

    /// The queues of these unfinished tasks and workers.
    pub fn new(tasks: &[TaskView], workers: &[WorkerEntry], now: Timestamp) -> Self {
        let mut list = Self {
            looked_at: tasks.len() as u64,
            complete: tasks.len() < MAX_LOOKED_AT as usize,
            ..Self::default()
        };
        let mut ready: BTreeMap<&str, Vec<&TaskView>> = BTreeMap::new();
        for task in tasks.iter().filter(|task| !task.spec.is_service()) {
            let queue = list.queue(&task.spec.queue);
            if task.paused && task.state == TaskState::Created {
                queue.paused += 1;
            } else if task.state.is_active() {
                queue.running += 1;
            } else if task.run_at.is_some_and(|time| time > now) {
                queue.delayed += 1;
            } else {
                queue.ready += 1;
                let oldest = queue.oldest.get_or_insert(task.created_at);
                *oldest = task.created_at.min(*oldest);
                ready.entry(&task.spec.queue).or_default().push(task);
            }
        }
        let served: BTreeSet<&String> = workers.iter().flat_map(|it| &it.info.queues).collect();
        for name in served {
            list.queue(name);
        }
        for queue in &mut list.items {
            queue.workers = count(workers, |worker| worker.info.serves(&queue.queue));
            let waited = queue.oldest.map(|oldest| now.duration_since(oldest));
            queue.oldest_wait_seconds = waited.map(|waited| waited.as_secs_f64());
            let tasks = ready.remove(queue.queue.as_str()).unwrap_or_default();
            (queue.needs, queue.stuck) = examine(&tasks, workers);
        }
        list
    }

    /// The queue of this name, in the order of names.
    fn queue(&mut self, name: &str) -> &mut QueueState {
        let found = self
            .items
            .binary_search_by(|queue| queue.queue.as_str().cmp(name));
        let index = found.unwrap_or_else(|index| {
            let queue = QueueState {
                queue: name.into(),
                ..QueueState::default()
            };
            self.items.insert(index, queue);
            index
        });
        &mut self.items[index]
    }
}

/// The needs of ready tasks of one queue, and those among them that no worker takes.
fn examine(ready: &[&TaskView], workers: &[WorkerEntry]) -> (Vec<QueueNeed>, Vec<StuckTasks>) {
    let mut by_needs: BTreeMap<Vec<String>, (u64, &TaskView)> = BTreeMap::new();
    for task in ready {
        let needs = task.spec.needs().iter().map(str::to_owned).collect();
        if by_needs.len() < MAX_NEEDS || by_needs.contains_key(&needs) {
            let (tasks, sample) = by_needs.entry(needs).or_insert((0, task));
            *tasks += 1;
            // The oldest is claimed first.
            *sample = if task.tid < sample.tid { task } else { sample };
        }
    }
    let (mut needs, mut stuck) = (Vec::new(), Vec::new());
    for (names, (tasks, sample)) in by_needs {
        let takes = |worker: &WorkerEntry| worker.would_take(&sample.spec);
        needs.push(QueueNeed {
            needs: names,
            tasks,
            able: count(workers, takes),
            free: count(workers, |worker| takes(worker) && worker.load < 1.0),
        });
        let explanation = explain_ready_task(sample, workers, 0);
        if explanation.reason.is_stuck() {
            stuck.push(StuckTasks {
                tasks,
                sample: sample.tid,
                explanation: explanation.text,
                hint: explanation.hint,
                reason: explanation.reason,
            });
        }
    }
    (needs, stuck)
}

fn count(workers: &[WorkerEntry], test: impl Fn(&WorkerEntry) -> bool) -> u64 {
    workers.iter().filter(|worker| test(worker)).count() as u64
}
