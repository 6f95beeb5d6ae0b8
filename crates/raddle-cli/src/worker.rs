//! A worker, met by somebody who named it as a task. Workers are tasks too, but nobody submitted them.

use raddle_broker::{Broker, TaskFilter};
use raddle_core::{Spec, State, Target, TaskView, Tid, WorkerEntry, worker::WorkerStatus};
use raddle_fabric::explain::{advise_on_worker, describe_worker};

use crate::error::{Failure, Outcome};

/// Whether this is a worker.
pub(crate) fn is_worker(task: &TaskView) -> bool {
    task.spec.is_service()
}

/// A worker that has no record as a task, as what it is all the same: what a resident's record says when it registers.
pub(crate) fn as_task(entry: &WorkerEntry) -> TaskView {
    let WorkerEntry { tid, info, status, started_at, .. } = entry;
    let spec = Spec { name: Some(info.name.clone()), ..Spec::new(Target::Service(info.kind.clone())) };
    TaskView {
        state: State::Running,
        attempt: 1,
        paused: *status == WorkerStatus::Paused,
        parent: info.parent,
        pid: Some(info.pid),
        claimed_at: Some(*started_at),
        ..TaskView::new(*tid, spec, *started_at)
    }
}

/// Refuses a worker where only a task will do.
pub(crate) async fn refuse(broker: &dyn Broker, task: &TaskView, done: &str) -> Outcome<()> {
    if !is_worker(task) {
        return Ok(());
    }
    let workers = broker.workers().await?;
    let entry = workers.iter().find(|worker| worker.tid == task.tid);
    let (standing, advice) = (describe_worker(task, entry), advise_on_worker(task.tid, entry));
    Err(Failure::Usage(format!("task {} {standing}, and cannot be {done}: {advice}", task.tid)))
}

/// The tasks that a worker has in hand.
pub(crate) async fn hand(broker: &dyn Broker, worker: Tid) -> Outcome<Vec<Tid>> {
    let states = vec![State::Spawning, State::Running];
    let tasks = broker.tasks(TaskFilter { states, ..TaskFilter::default() }).await?;
    Ok(tasks.iter().filter(|task| task.worker == Some(worker)).map(|task| task.tid).collect())
}
