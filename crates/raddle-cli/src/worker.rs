//! Workers that a user names as tasks. Workers are tasks that no one submitted.

use raddle_broker::{Broker, TaskFilter};
use raddle_client::explain::{advise_on_worker, describe_worker};
use raddle_model::{Target, TaskSpec, TaskState, TaskView, Tid, WorkerEntry, worker::WorkerStatus};

use crate::error::{Failure, Outcome};

/// Whether this is a worker.
pub(crate) fn is_worker(task: &TaskView) -> bool {
    task.spec.is_service()
}

/// Shows a worker without a task record as a task, with the fields that the record of a resident
/// worker has.
pub(crate) fn as_task(entry: &WorkerEntry) -> TaskView {
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

/// Refuses a worker where a task is needed.
pub(crate) async fn refuse(broker: &dyn Broker, task: &TaskView, done: &str) -> Outcome<()> {
    if !is_worker(task) {
        return Ok(());
    }
    let workers = broker.workers().await?;
    let entry = workers.iter().find(|worker| worker.tid == task.tid);
    let (standing, advice) = (
        describe_worker(task, entry),
        advise_on_worker(task.tid, entry),
    );
    Err(Failure::Usage(format!(
        "task {} {standing}, and cannot be {done}: {advice}",
        task.tid
    )))
}

/// The tasks that a worker holds.
pub(crate) async fn held_tasks(broker: &dyn Broker, worker: Tid) -> Outcome<Vec<Tid>> {
    let states = vec![TaskState::Spawning, TaskState::Running];
    let tasks = broker
        .tasks(TaskFilter {
            states,
            ..TaskFilter::default()
        })
        .await?;
    Ok(tasks
        .iter()
        .filter(|task| task.worker == Some(worker))
        .map(|task| task.tid)
        .collect())
}
