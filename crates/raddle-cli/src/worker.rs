//! Workers that a user names as tasks. Workers are tasks that no one submitted.

use raddle_broker::Broker;
use raddle_client::explain::{advise_on_worker, describe_worker};
use raddle_model::TaskView;

use crate::error::{Failure, Outcome};

/// Whether this is a worker.
pub(crate) fn is_worker(task: &TaskView) -> bool {
    task.spec.is_service()
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
