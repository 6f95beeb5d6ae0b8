//! Counts of tasks and messages in queues that users name.

use std::collections::BTreeMap;

use raddle_model::QueueName;
use serde::Serialize;

use super::{AUDIT_QUEUE, WEB_QUEUES, list};
use crate::{Broker, Result, SummaryDetail, matches_pattern};

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
    /// Whether the queue is paused.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_paused: bool,
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
    let summary = broker.summarize(SummaryDetail::default()).await?;
    let counted = summary.queues.get(&queue.to_string());
    let counts = counted.map_or_else(TaskCounts::default, |queue| TaskCounts {
        ready: queue.ready,
        delayed: queue.delayed,
        paused: queue.paused,
        running: queue.spawning + queue.running,
        is_paused: queue.is_paused,
    });
    Ok(Some(counts))
}

/// Whether users name this queue, and not Raddle.
fn is_user_queue(queue: &QueueName) -> bool {
    let is_own = |name: &str| name == AUDIT_QUEUE || name.starts_with(WEB_QUEUES);
    matches!(queue, QueueName::Free(name) if !is_own(name)) && queue.desk().is_none()
}
