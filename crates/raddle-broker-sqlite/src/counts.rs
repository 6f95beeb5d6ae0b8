//! Counters of tasks by partition and state. They are kept in the transactions that change tasks,
//! so that a summary need not count millions of records.
//!
//! A transaction adds its changes up in memory and writes one row per partition when it commits.

use raddle_model::TaskState;
use rusqlite::{Connection, params};

/// A counter: a column of `counts`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Counter {
    Ready,
    Delayed,
    Paused,
    Spawning,
    Running,
    Completed,
    Failed,
    Timeout,
    Cancelled,
    Killed,
    Dead,
}

const COUNTERS: usize = 11;

/// The partition of Raddle's own services, which are not counted.
pub(super) const SERVICES: i64 = 0;

/// Changes of the counters of one partition.
struct PartitionChange {
    partition_id: i64,
    by: [i64; COUNTERS],
}

/// The changes of one transaction.
#[derive(Default)]
pub(super) struct CountChanges(Vec<PartitionChange>);

impl Counter {
    /// The counter of a claimed or finished task.
    pub(super) fn for_state(state: TaskState) -> Self {
        match state {
            TaskState::Created => Self::Ready,
            TaskState::Spawning => Self::Spawning,
            TaskState::Running => Self::Running,
            TaskState::Completed => Self::Completed,
            TaskState::Failed => Self::Failed,
            TaskState::Timeout => Self::Timeout,
            TaskState::Cancelled => Self::Cancelled,
            TaskState::Killed => Self::Killed,
        }
    }
}

impl CountChanges {
    pub(super) fn add(&mut self, partition_id: i64, counter: Counter, by: i64) {
        if partition_id == SERVICES {
            return;
        }
        let known = self
            .0
            .iter()
            .position(|change| change.partition_id == partition_id);
        let index = known.unwrap_or_else(|| {
            self.0.push(PartitionChange {
                partition_id,
                by: [0; COUNTERS],
            });
            self.0.len() - 1
        });
        self.0[index].by[counter as usize] += by;
    }

    pub(super) fn write(&self, db: &Connection) -> rusqlite::Result<()> {
        for PartitionChange { partition_id, by } in &self.0 {
            if by.iter().all(|by| *by == 0) {
                continue;
            }
            let [ready, delayed, paused, spawning, running, ended @ ..] = by;
            let [completed, failed, timeout, cancelled, killed, dead] = ended;
            db.prepare_cached(ADD)?.execute(params![
                partition_id,
                ready,
                delayed,
                paused,
                spawning,
                running,
                completed,
                failed,
                timeout,
                cancelled,
                killed,
                dead
            ])?;
        }
        Ok(())
    }
}

const ADD: &str = "UPDATE counts SET ready = ready + ?2, delayed = delayed + ?3, paused = paused + ?4, spawning = spawning + ?5,
    running = running + ?6, completed = completed + ?7, failed = failed + ?8, timeout = timeout + ?9, cancelled = cancelled + ?10,
    killed = killed + ?11, dead = dead + ?12 WHERE partition_id = ?1";
