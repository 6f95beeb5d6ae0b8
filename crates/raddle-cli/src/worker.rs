//! A worker, met by somebody who named it as a task. Workers are tasks too, but nobody submitted them.

use raddle_broker::{Broker, TaskFilter};
use raddle_core::{Spec, State, Target, TaskView, Tid, WorkerEntry, worker::WorkerStatus};

use crate::{
    error::{Failure, Outcome},
    format,
};

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

/// How many of its slots are in use.
pub(crate) fn busy(entry: &WorkerEntry) -> u32 {
    // A share of a small whole number, told as such: rounding gives the number back.
    (entry.load * f64::from(entry.info.concurrency)).round() as u32
}

/// How a worker is. `entry` is what the registry says; one that is gone has none.
pub(crate) fn standing(task: &TaskView, entry: Option<&WorkerEntry>) -> String {
    match entry {
        Some(entry) => {
            let slots = format::count(entry.info.concurrency.into(), "slot");
            format!("is a worker, alive and {}, with {} of {slots} busy", entry.status.as_str(), busy(entry))
        }
        None if task.state.is_terminal() => format!("is a worker that is gone, {}", task.state),
        None => "is a worker that is gone without a word".into(),
    }
}

/// What can be done about a worker.
pub(crate) fn advice(tid: Tid, entry: Option<&WorkerEntry>) -> String {
    match entry.map(|entry| entry.status) {
        Some(WorkerStatus::Paused) => {
            format!("let it go on with 'raddle task resume {tid}', or stop it with 'raddle worker stop {tid}'")
        }
        Some(WorkerStatus::Draining) => {
            format!("it leaves when that is done; 'raddle worker stop --kill {tid}' ends it now")
        }
        Some(_) => format!("'raddle task tree {tid}' shows what it runs, 'raddle worker stop {tid}' stops it"),
        None => "start another with 'raddle worker start': it also takes back what this one may have left".into(),
    }
}

/// Refuses a worker where only a task will do.
pub(crate) async fn refuse(broker: &dyn Broker, task: &TaskView, done: &str) -> Outcome<()> {
    if !is_worker(task) {
        return Ok(());
    }
    let workers = broker.workers().await?;
    let entry = workers.iter().find(|worker| worker.tid == task.tid);
    let (standing, advice) = (standing(task, entry), advice(task.tid, entry));
    Err(Failure::Usage(format!("task {} {standing}, and cannot be {done}: {advice}", task.tid)))
}

/// The tasks that a worker has in hand.
pub(crate) async fn hand(broker: &dyn Broker, worker: Tid) -> Outcome<Vec<Tid>> {
    let states = vec![State::Spawning, State::Running];
    let tasks = broker.tasks(TaskFilter { states, ..TaskFilter::default() }).await?;
    Ok(tasks.iter().filter(|task| task.worker == Some(worker)).map(|task| task.tid).collect())
}
