//! Selects tasks by state or batch.

use raddle_broker::{Broker, SummaryDetail, TaskFilter};
use raddle_model::{TaskState, TaskView, Tid};

use crate::{Error, Result};

/// The states of tasks that failed by themselves.
pub const FAILED: [TaskState; 3] = [TaskState::Failed, TaskState::Timeout, TaskState::Killed];
/// The states of tasks that are not finished.
pub const UNFINISHED: [TaskState; 3] =
    [TaskState::Created, TaskState::Spawning, TaskState::Running];
/// The states of tasks that are finished.
pub const FINISHED: [TaskState; 5] = [
    TaskState::Completed,
    TaskState::Failed,
    TaskState::Timeout,
    TaskState::Cancelled,
    TaskState::Killed,
];
/// How many tasks are read at once.
const PAGE: u32 = 1000;

/// Calls `visit` with every matching task, the newest first.
pub async fn for_each(
    broker: &dyn Broker,
    filter: TaskFilter,
    mut visit: impl FnMut(&TaskView),
) -> Result<()> {
    let mut before = filter.before;
    loop {
        let page = broker
            .tasks(TaskFilter {
                before,
                limit: PAGE,
                ..filter.clone()
            })
            .await?;
        page.iter().for_each(&mut visit);
        match page.last() {
            Some(last) if page.len() == PAGE as usize => before = Some(last.tid),
            _ => return Ok(()),
        }
    }
}

/// The ids of all matching tasks, the oldest first.
pub async fn matching_tids(broker: &dyn Broker, filter: TaskFilter) -> Result<Vec<Tid>> {
    let mut tids = Vec::new();
    for_each(broker, filter, |task| tids.push(task.tid)).await?;
    tids.reverse();
    Ok(tids)
}

/// Checks that a batch exists; a mistyped name must not look like finished work.
pub async fn check_batch(broker: &dyn Broker, name: &str) -> Result<()> {
    let detail = SummaryDetail {
        batches: true,
        ..SummaryDetail::default()
    };
    match broker.summarize(detail).await?.batches.contains_key(name) {
        true => Ok(()),
        false => Err(Error::UnknownBatch(name.into())),
    }
}

/// The batch whose first task was submitted last.
pub async fn newest_batch(broker: &dyn Broker) -> Result<String> {
    let detail = SummaryDetail {
        batches: true,
        ..SummaryDetail::default()
    };
    let batches = broker.summarize(detail).await?.batches;
    batches
        .into_iter()
        .max_by_key(|(_, batch)| batch.since)
        .map(|(name, _)| name)
        .ok_or(Error::NoBatchYet)
}
