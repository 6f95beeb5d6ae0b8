//! Failed tasks, grouped by cause: the name, how the last attempt ended, and the last line of its
//! error output without its variable parts.

mod cause;

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use raddle_broker::{Broker, OutputStream};
use raddle_model::{TaskQuery, TaskView, Tid, WorkerEntry};
use serde::Serialize;

pub use cause::normalize_line;

use crate::{
    Result,
    select::FAILED,
    tasks::{TaskListOptions, list_tasks},
};

/// How many failed tasks are looked at, the newest.
pub const MAX_TASKS: u32 = 500;
/// How much of the error output is read for its last line.
const TAIL: u32 = 4096;
/// How many last lines are kept between reads.
const MAX_KEPT: usize = 4 * MAX_TASKS as usize;

/// Failed tasks by cause.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct FailureList {
    /// The groups; the one with the newest failure first.
    pub items: Vec<FailureGroup>,
    /// How many failed tasks were looked at.
    pub looked_at: u64,
    /// Whether these were all. Otherwise they were the newest.
    pub complete: bool,
}

/// Failed tasks with the same cause.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FailureGroup {
    /// The display name of the tasks.
    pub name: String,
    /// How their last attempts ended, without variable parts.
    pub exit: String,
    /// The kind of end: see [`raddle_model::ExitStatus::kind`].
    pub exit_kind: &'static str,
    /// The last line of the error output, without variable parts. Empty if there was none.
    pub line: String,
    /// The number of tasks.
    pub count: u64,
    /// How many of them are dead letters, which can be retried.
    pub dead: u64,
    /// When the first of them ended.
    pub first_seen: Timestamp,
    /// When the last of them ended.
    pub last_seen: Timestamp,
    /// The queues of the tasks.
    pub queues: BTreeSet<String>,
    /// The hosts of their workers, as far as these are alive.
    pub hosts: BTreeSet<String>,
    /// The newest task.
    pub sample: Tid,
    /// The last line of its error output as it is.
    pub sample_line: String,
    /// The tasks, the newest first.
    pub tasks: Vec<Tid>,
}

/// A failed task, with the last line of its error output.
#[derive(Clone, Debug)]
pub struct FailedTask {
    /// The task.
    pub task: TaskView,
    /// The last line of the error output of its last attempt.
    pub line: String,
}

/// Reads failures, and remembers last lines between reads.
#[derive(Debug, Default)]
pub struct FailureReader {
    lines: BTreeMap<Tid, String>,
}

impl FailureReader {
    /// Groups the newest failed tasks that match a query.
    pub async fn read(&mut self, broker: &dyn Broker, query: &TaskQuery) -> Result<FailureList> {
        let failed = FAILED.map(|state| state.as_str()).join(",");
        let failed: TaskQuery = format!("state:{failed}")
            .parse()
            .expect("states are values");
        let options = TaskListOptions {
            limit: MAX_TASKS,
            ..TaskListOptions::default()
        };
        let list = list_tasks(broker, &failed.and(query.clone()), &options).await?;
        let workers = broker.workers().await?;
        let mut tasks = Vec::with_capacity(list.items.len());
        for task in list.items {
            let line = self.last_line(broker, &task).await?;
            tasks.push(FailedTask { task, line });
        }
        while self.lines.len() > MAX_KEPT {
            self.lines.pop_first();
        }
        Ok(FailureList {
            items: group(&tasks, &workers),
            looked_at: tasks.len() as u64,
            complete: list.complete,
        })
    }

    /// A finished task does not change, so its line is read once.
    async fn last_line(&mut self, broker: &dyn Broker, task: &TaskView) -> Result<String> {
        if let Some(line) = self.lines.get(&task.tid) {
            return Ok(line.clone());
        }
        let written = task.report.as_ref().map_or(0, |report| report.stderr_bytes);
        let line = if written == 0 {
            String::new()
        } else {
            let from = written.saturating_sub(TAIL.into());
            let stream = OutputStream::Stderr;
            let tail = broker
                .read_output(task.tid, task.attempt, stream, from, TAIL)
                .await?;
            cause::last_line(&tail)
        };
        self.lines.insert(task.tid, line.clone());
        Ok(line)
    }
}

/// Groups failed tasks, which are sorted from the newest.
pub fn group(tasks: &[FailedTask], workers: &[WorkerEntry]) -> Vec<FailureGroup> {
    let hosts: BTreeMap<Tid, &str> = workers
        .iter()
        .map(|worker| (worker.tid, worker.info.host.as_str()))
        .collect();
    let mut groups: BTreeMap<(String, String, String), FailureGroup> = BTreeMap::new();
    for FailedTask { task, line } in tasks {
        let Some(exit) = task.report.as_ref().map(|report| &report.exit) else {
            continue;
        };
        let ended = task.finished_at.unwrap_or(task.created_at);
        let name = task.spec.display_name().to_owned();
        let (exit_text, normal) = (cause::normalize_exit(exit), normalize_line(line));
        let key = (name.clone(), exit_text.clone(), normal.clone());
        let group = groups.entry(key).or_insert_with(|| FailureGroup {
            name,
            exit: exit_text,
            exit_kind: exit.kind(),
            line: normal,
            count: 0,
            dead: 0,
            first_seen: ended,
            last_seen: ended,
            queues: BTreeSet::new(),
            hosts: BTreeSet::new(),
            sample: task.tid,
            sample_line: line.clone(),
            tasks: Vec::new(),
        });
        group.count += 1;
        group.dead += u64::from(task.dead);
        group.first_seen = group.first_seen.min(ended);
        group.last_seen = group.last_seen.max(ended);
        group.queues.insert(task.spec.queue.clone());
        let host = task.worker.and_then(|worker| hosts.get(&worker));
        group.hosts.extend(host.map(|host| (*host).to_owned()));
        group.tasks.push(task.tid);
    }
    let mut groups: Vec<FailureGroup> = groups.into_values().collect();
    groups.sort_by(|a, b| {
        b.last_seen
            .cmp(&a.last_seen)
            .then_with(|| a.name.cmp(&b.name))
    });
    groups
}

#[cfg(test)]
mod tests;
