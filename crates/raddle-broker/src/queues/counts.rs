//! Counts of tasks and messages in queues that users name.

use std::collections::BTreeMap;

use jiff::Timestamp;
use raddle_model::{QueueName, TaskState, TaskView};
use serde::Serialize;

use super::{AUDIT_QUEUE, WEB_QUEUES, list, pages, views};
use crate::{Broker, Result, SummaryDetail, TaskFilter, matches_pattern};

/// The contents of a queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct QueueCounts {
    /// The queue.
    pub queue: QueueName,
    /// Ready tasks.
    pub ready: u64,
    /// Stored messages.
    pub messages: u64,
}

/// The unfinished tasks of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TaskCounts {
    /// Ready to be claimed.
    pub ready: u64,
    /// Delayed tasks.
    pub delayed: u64,
    /// Paused tasks.
    pub paused: u64,
    /// Claimed by a worker.
    pub running: u64,
}

impl TaskCounts {
    fn add(&mut self, task: &TaskView, now: Timestamp) {
        let count = match task.state {
            TaskState::Created if task.paused => &mut self.paused,
            TaskState::Created if task.run_at.is_some_and(|at| at > now) => &mut self.delayed,
            TaskState::Created => &mut self.ready,
            _ => &mut self.running,
        };
        *count += 1;
    }
}

/// The queues that hold something or that a live worker serves, by name. Queues of tasks and of
/// Raddle itself are included only if a pattern matches them.
pub async fn list_counts(broker: &dyn Broker, pattern: Option<&str>) -> Result<Vec<QueueCounts>> {
    let summary = broker
        .summarize(SummaryDetail {
            messages: true,
            ..SummaryDetail::default()
        })
        .await?;
    let mut counts: BTreeMap<String, QueueCounts> = BTreeMap::new();
    let mut add = |queue: QueueName, ready: u64, messages: u64| {
        let entry = counts.entry(queue.to_string());
        let entry = entry.or_insert(QueueCounts {
            queue,
            ready: 0,
            messages: 0,
        });
        entry.ready += ready;
        entry.messages += messages;
    };
    match pattern {
        Some(pattern) => {
            list(broker, pattern)
                .await?
                .into_iter()
                .for_each(|depth| add(depth.queue, 0, depth.messages));
        }
        None => {
            let stored = summary
                .messages
                .into_iter()
                .filter(|(queue, _)| is_user_queue(queue));
            stored.for_each(|(queue, messages)| add(queue, 0, messages));
        }
    }
    let served = broker
        .workers()
        .await?
        .into_iter()
        .flat_map(|worker| worker.info.queues)
        .map(|queue| (queue, 0));
    for (queue, ready) in summary.ready.into_iter().chain(served) {
        if let Ok(queue) = queue.parse::<QueueName>()
            && is_user_queue(&queue)
            && pattern.is_none_or(|pattern| matches_pattern(pattern, &queue.to_string()))
        {
            add(queue, ready, 0);
        }
    }
    Ok(counts.into_values().collect())
}

/// Counts the unfinished tasks of a queue. `None` for a queue to which tasks cannot be submitted.
pub(super) async fn count_tasks(
    broker: &dyn Broker,
    queue: &QueueName,
) -> Result<Option<TaskCounts>> {
    if !is_user_queue(queue) {
        return Ok(None);
    }
    let (mut counts, now) = (TaskCounts::default(), Timestamp::now());
    let filter = TaskFilter {
        queue: Some(queue.to_string()),
        services: false,
        ..views::unfinished()
    };
    pages::each(broker, filter, |task| counts.add(&task, now)).await?;
    Ok(Some(counts))
}

/// Whether users name this queue, and not Raddle.
fn is_user_queue(queue: &QueueName) -> bool {
    let is_own = |name: &str| name == AUDIT_QUEUE || name.starts_with(WEB_QUEUES);
    matches!(queue, QueueName::Free(name) if !is_own(name)) && queue.desk().is_none()
}
