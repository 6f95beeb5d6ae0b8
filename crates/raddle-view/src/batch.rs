//! Tasks that were submitted together.

use std::{cmp::Reverse, collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use raddle_broker::{Broker, SummaryDetail, TaskFilter};
use raddle_client::wait::{WATCH_WORKERS, reclaim_if_worker_lost};
use raddle_model::{TaskState, TaskView, Tid};
use serde::Serialize;
use tokio::time::sleep;

use crate::{
    Result,
    select::{FAILED, UNFINISHED, matching_tids},
};

/// The shortest pause between two counts of a batch.
const MIN_PAUSE: Duration = Duration::from_millis(200);

/// A batch and its counts.
#[derive(Clone, Debug, Serialize)]
pub struct BatchRecord<'a> {
    /// Its name.
    pub batch: &'a str,
    /// How many tasks it has.
    pub tasks: u64,
    /// How many are finished.
    pub finished: u64,
    /// How many failed by themselves.
    pub failed: u64,
    /// How many are in each state.
    pub states: BTreeMap<TaskState, u64>,
    /// When its first task was submitted, where batches are listed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
}

/// Tasks of a batch by state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BatchCounts(BTreeMap<TaskState, u64>);

impl BatchCounts {
    /// Counts the tasks of a batch.
    pub async fn read(broker: &dyn Broker, name: &str) -> Result<Self> {
        let detail = SummaryDetail {
            batch: Some(name.into()),
            ..SummaryDetail::default()
        };
        Ok(Self(broker.summarize(detail).await?.states))
    }

    fn sum(&self, states: &[TaskState]) -> u64 {
        states.iter().filter_map(|state| self.0.get(state)).sum()
    }

    /// How many tasks there are.
    pub fn total(&self) -> u64 {
        self.0.values().sum()
    }

    /// How many are finished.
    pub fn finished(&self) -> u64 {
        self.total() - self.unfinished()
    }

    /// How many are not finished.
    pub fn unfinished(&self) -> u64 {
        self.sum(&UNFINISHED)
    }

    /// How many failed by themselves.
    pub fn failed(&self) -> u64 {
        self.sum(&FAILED)
    }

    /// Whether all are completed.
    pub fn is_completed(&self) -> bool {
        self.sum(&[TaskState::Completed]) == self.total()
    }

    /// The states that tasks are in, with their numbers.
    pub fn states(&self) -> impl Iterator<Item = (TaskState, u64)> {
        self.0
            .iter()
            .filter(|(_, n)| **n > 0)
            .map(|(state, n)| (*state, *n))
    }

    /// The counts of the batch `name` as a record.
    pub fn record<'a>(&self, name: &'a str) -> BatchRecord<'a> {
        BatchRecord {
            batch: name,
            tasks: self.total(),
            finished: self.finished(),
            failed: self.failed(),
            states: TaskState::ALL
                .into_iter()
                .map(|state| (state, self.0.get(&state).copied().unwrap_or(0)))
                .collect(),
            since: None,
        }
    }
}

/// A batch in a list.
#[derive(Clone, Debug)]
pub struct ListedBatch {
    /// Its name.
    pub name: String,
    /// When its first task was submitted.
    pub since: Timestamp,
    /// Its tasks by state.
    pub counts: BatchCounts,
}

impl ListedBatch {
    /// The batch as a record.
    pub fn record(&self) -> BatchRecord<'_> {
        BatchRecord {
            since: Some(self.since),
            ..self.counts.record(&self.name)
        }
    }
}

/// The newest batches, and how many older ones there are.
pub async fn list(broker: &dyn Broker, limit: usize) -> Result<(Vec<ListedBatch>, usize)> {
    let detail = SummaryDetail {
        batches: true,
        ..SummaryDetail::default()
    };
    let batches = broker.summarize(detail).await?.batches;
    let mut batches: Vec<_> = batches.into_iter().collect();
    batches.sort_by_key(|(_, batch)| Reverse(batch.since));
    let older = batches.len().saturating_sub(limit);
    batches.truncate(limit);
    let mut listed = Vec::new();
    for (name, batch) in batches {
        listed.push(ListedBatch {
            counts: BatchCounts::read(broker, &name).await?,
            name,
            since: batch.since,
        });
    }
    Ok((listed, older))
}

/// The tasks of a batch in these states, the oldest first.
pub async fn tids(broker: &dyn Broker, name: &str, states: &[TaskState]) -> Result<Vec<Tid>> {
    let filter = TaskFilter {
        states: states.to_vec(),
        batch: Some(name.into()),
        ..TaskFilter::default()
    };
    matching_tids(broker, filter).await
}

/// A task of a batch that waits, if there is one.
pub async fn waiting_task(broker: &dyn Broker, name: &str) -> Result<Option<Tid>> {
    let tasks = first_task(broker, name, vec![TaskState::Created]).await?;
    Ok(tasks.first().map(|task| task.tid))
}

/// Waits until the counts of a batch change.
pub async fn next_counts(
    broker: &dyn Broker,
    name: &str,
    before: &BatchCounts,
) -> Result<BatchCounts> {
    let mut last_event = broker.last_event().await?;
    loop {
        let now = BatchCounts::read(broker, name).await?;
        if now != *before {
            return Ok(now);
        }
        sleep(MIN_PAUSE).await;
        let events = broker.events(Some(last_event), None, 1, WATCH_WORKERS);
        if events.await?.is_empty() {
            reclaim_from_dead_workers(broker, name).await?;
        }
        last_event = broker.last_event().await?;
    }
}

/// Reclaims tasks of a batch from workers that are gone. Live workers do this by themselves.
async fn reclaim_from_dead_workers(broker: &dyn Broker, name: &str) -> Result<()> {
    let states = vec![TaskState::Spawning, TaskState::Running];
    for task in first_task(broker, name, states).await? {
        reclaim_if_worker_lost(broker, &task).await?;
    }
    Ok(())
}

async fn first_task(
    broker: &dyn Broker,
    name: &str,
    states: Vec<TaskState>,
) -> Result<Vec<TaskView>> {
    let filter = TaskFilter {
        states,
        batch: Some(name.into()),
        limit: 1,
        ..TaskFilter::default()
    };
    Ok(broker.tasks(filter).await?)
}
