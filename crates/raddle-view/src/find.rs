//! Finds tasks and workers by id.

use raddle_broker::{Broker, TaskFilter};
use raddle_model::{
    Target, TaskSpec, TaskState, TaskView, Tid, WorkerEntry, tid::ShortTid, worker::WorkerStatus,
};

use crate::{Error, Result};

/// The task or worker with this short id.
pub async fn resolve_short_id(broker: &dyn Broker, short: ShortTid) -> Result<Tid> {
    let mut found = broker.resolve_short_id(short).await?;
    if found.is_empty() {
        // An ephemeral worker has no task record, but its title shows its id.
        let workers = broker.workers().await?;
        found = workers
            .iter()
            .map(|worker| worker.tid)
            .filter(|tid| tid.short() == short)
            .collect();
    }
    match found.as_slice() {
        [tid] => Ok(*tid),
        [] => Err(Error::UnknownShortId(short)),
        _ => Err(Error::AmbiguousShortId { short, tids: found }),
    }
}

/// The task that was submitted last.
pub async fn newest_task(broker: &dyn Broker) -> Result<Tid> {
    let filter = TaskFilter {
        limit: 1,
        ..TaskFilter::default()
    };
    let newest = broker.tasks(filter).await?;
    newest.first().map(|task| task.tid).ok_or(Error::NoTaskYet)
}

/// The task with this id.
pub async fn get_task(broker: &dyn Broker, tid: Tid) -> Result<TaskView> {
    let task = broker.task(tid).await?;
    Ok(task.ok_or(raddle_broker::Error::NotFound(tid))?)
}

/// The task with this id, or the worker with this id as a task. An ephemeral worker is only in the
/// registry; the tasks that it holds are returned with it.
pub async fn get_task_or_worker(broker: &dyn Broker, tid: Tid) -> Result<(TaskView, Vec<Tid>)> {
    if let Some(task) = broker.task(tid).await? {
        return Ok((task, Vec::new()));
    }
    let workers = broker.workers().await?;
    let entry = workers
        .iter()
        .find(|worker| worker.tid == tid)
        .ok_or(raddle_broker::Error::NotFound(tid))?;
    Ok((worker_as_task(entry), held_tasks(broker, tid).await?))
}

/// The tasks that a worker holds.
pub async fn held_tasks(broker: &dyn Broker, worker: Tid) -> Result<Vec<Tid>> {
    let filter = TaskFilter {
        states: vec![TaskState::Spawning, TaskState::Running],
        ..TaskFilter::default()
    };
    let tasks = broker.tasks(filter).await?;
    Ok(tasks
        .iter()
        .filter(|task| task.worker == Some(worker))
        .map(|task| task.tid)
        .collect())
}

/// A worker without a task record as a task, with the fields that the record of a resident worker
/// has.
fn worker_as_task(entry: &WorkerEntry) -> TaskView {
    let WorkerEntry {
        tid,
        info,
        status,
        started_at,
        ..
    } = entry;
    let spec = TaskSpec {
        name: Some(info.name.clone()),
        ..TaskSpec::new(Target::Service(info.kind.clone()))
    };
    TaskView {
        state: TaskState::Running,
        attempt: 1,
        paused: *status == WorkerStatus::Paused,
        parent: info.parent,
        pid: Some(info.pid),
        claimed_at: Some(*started_at),
        ..TaskView::new(*tid, spec, *started_at)
    }
}
