//! `LogCounter`: counts the attempts of a spawner's workers from the event log. It is for workers
//! that reach the broker directly, past the [`MeteredBroker`](super::MeteredBroker) of the spawner.
//!
//! A worker belongs to the spawner that its task record names as parent. Workers of other spawners
//! are not counted, even after those are gone.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use raddle_broker::{AttemptId, Broker, LeasedTask, Result, TaskFilter};
use raddle_model::{TaskEvent, TaskEventKind, TaskView, Tid};
use tokio::{
    sync::oneshot,
    time::{sleep, timeout},
};

use super::Metrics;

/// Follows the log. Do not use it for workers behind a `MeteredBroker`: they would be counted
/// twice.
pub struct LogCounter {
    broker: Arc<dyn Broker>,
    metrics: Arc<Metrics>,
    spawner: SpawnerIds,
    /// The last event that was counted.
    after: u64,
    /// Recently seen workers, and whether they belong to this spawner.
    workers: BTreeMap<Tid, bool>,
}

/// All ids of a spawner. It gets a new one whenever it registers again.
#[derive(Clone)]
pub struct SpawnerIds(Arc<Mutex<BTreeSet<Tid>>>);

/// Events per query.
const BATCH: u32 = 1000;
/// How long a query waits for the first event.
const WAIT: Duration = Duration::from_secs(30);
const ERROR_PAUSE: Duration = Duration::from_secs(5);
/// How long the final query may take when the spawner exits.
const FINAL_TIMEOUT: Duration = Duration::from_secs(2);
/// Most workers to remember. A forgotten worker is looked up again.
const MAX_WORKERS: usize = 20_000;

impl SpawnerIds {
    /// The ids of a spawner that has one id so far.
    pub fn new(spawner: Tid) -> Self {
        Self(Arc::new(Mutex::new(BTreeSet::from([spawner]))))
    }

    /// Adds the id of a new registration.
    pub fn add(&self, spawner: Tid) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(spawner);
    }

    fn contains(&self, spawner: Tid) -> bool {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .contains(&spawner)
    }
}

impl LogCounter {
    /// Counts from the registration of `spawner` on: TIDs and event ids share a clock, and it has
    /// no workers before.
    pub fn new(
        broker: Arc<dyn Broker>,
        metrics: Arc<Metrics>,
        spawner: Tid,
        ids: SpawnerIds,
    ) -> Self {
        Self {
            broker,
            metrics,
            spawner: ids,
            after: spawner.as_u64(),
            workers: BTreeMap::new(),
        }
    }

    /// Counts until `stop`, and once more after it.
    pub async fn run(mut self, mut stop: oneshot::Receiver<()>) {
        loop {
            let counted = tokio::select! {
                counted = self.count_next(WAIT) => counted,
                _ = &mut stop => break,
            };
            if let Err(error) = counted {
                tracing::warn!(%error, "the event log cannot be read: tasks of workers are counted later");
                sleep(ERROR_PAUSE).await;
            }
        }
        let _ = timeout(FINAL_TIMEOUT, self.count_next(Duration::ZERO)).await;
    }

    /// Counts the next events. Cancel-safe: counting starts after all reads.
    async fn count_next(&mut self, wait: Duration) -> Result<()> {
        let events = self
            .broker
            .events(Some(self.after), None, BATCH, wait)
            .await?;
        let Some(last) = events.last() else {
            return Ok(());
        };
        let last = last.id.as_u64();
        self.look_up_workers(&events).await?;
        let tasks = self.tasks_of(&events).await?;
        self.after = last;
        for event in &events {
            if let Some(task) = tasks.get(&event.tid) {
                self.count(event, task);
            }
        }
        Ok(())
    }

    async fn look_up_workers(&mut self, events: &[TaskEvent]) -> Result<()> {
        let claimed = events
            .iter()
            .filter(|event| event.event == TaskEventKind::Spawning);
        let unknown: BTreeSet<Tid> = claimed
            .filter_map(|event| event.worker)
            .filter(|worker| !self.workers.contains_key(worker))
            .collect();
        if unknown.is_empty() {
            return Ok(());
        }
        let records = read_tasks(&*self.broker, &unknown).await?;
        for worker in unknown {
            let parent = records.get(&worker).and_then(|record| record.parent);
            self.workers.insert(
                worker,
                parent.is_some_and(|parent| self.spawner.contains(parent)),
            );
        }
        while self.workers.len() > MAX_WORKERS {
            self.workers.pop_first();
        }
        Ok(())
    }

    /// Reads the tasks of events that are counted.
    async fn tasks_of(&self, events: &[TaskEvent]) -> Result<BTreeMap<Tid, TaskView>> {
        let mut tids = BTreeSet::new();
        for event in events {
            let counts = match event.event {
                TaskEventKind::Spawning => event
                    .worker
                    .is_some_and(|worker| self.workers.get(&worker) == Some(&true)),
                _ => attempt_of(event)
                    .is_some_and(|attempt_id| self.metrics.counters().has(attempt_id)),
            };
            if counts {
                tids.insert(event.tid);
            }
        }
        if tids.is_empty() {
            Ok(BTreeMap::new())
        } else {
            read_tasks(&*self.broker, &tids).await
        }
    }

    fn count(&self, event: &TaskEvent, task: &TaskView) {
        let Some(attempt_id) = attempt_of(event) else {
            return;
        };
        let (mut counters, at) = (self.metrics.counters(), self.metrics.time_of(event.at));
        match event.event {
            TaskEventKind::Spawning => {
                // A one-shot worker claims as soon as it is registered.
                let asked = self.metrics.time_of_nanos(attempt_id.owner.unix_nanos());
                let claim = LeasedTask {
                    attempt_id,
                    spec: task.spec.clone(),
                    fencing_token: event.id.as_u64(),
                };
                counters.claimed(&[claim], asked, at);
            }
            _ => {
                let report = task
                    .report
                    .as_ref()
                    .filter(|_| event.event.is_terminal() && task.attempt == event.attempt);
                let ran = report
                    .and_then(|report| Some(report.ended_at.duration_since(report.started_at?)));
                counters.logged(
                    attempt_id,
                    event,
                    ran.map(|ran| ran.as_secs_f64().max(0.0)),
                    at,
                );
            }
        }
    }
}

/// The attempt of an event, if it has one.
fn attempt_of(event: &TaskEvent) -> Option<AttemptId> {
    event.worker.map(|owner| AttemptId {
        tid: event.tid,
        attempt: event.attempt,
        owner,
    })
}

async fn read_tasks(broker: &dyn Broker, tids: &BTreeSet<Tid>) -> Result<BTreeMap<Tid, TaskView>> {
    let among = Some(tids.iter().copied().collect());
    let tasks = broker
        .tasks(TaskFilter {
            among,
            services: true,
            ..TaskFilter::default()
        })
        .await?;
    Ok(tasks.into_iter().map(|task| (task.tid, task)).collect())
}
