//! Workers that a user names where tasks are expected. A worker is a task that was not submitted.

use raddle_broker::Broker;
use raddle_client::explain::{advise_on_worker, describe_worker};
use raddle_model::TaskView;

use crate::error::{Failure, Outcome};

/// Whether this is a worker.
pub(crate) fn is_worker(task: &TaskView) -> bool {
    task.spec.is_service()
}

/// Refuses a worker where a task is expected.
pub(crate) async fn refuse_worker(broker: &dyn Broker, task: &TaskView, done: &str) -> Outcome<()> {
    if !is_worker(task) {
        return Ok(());
    }
    let workers = broker.workers().await?;
    let entry = workers.iter().find(|worker| worker.tid == task.tid);
    let (status, advice) = (
        describe_worker(task, entry),
        advise_on_worker(task.tid, entry),
    );
    Err(Failure::Usage(format!(
        "task {} {status}, and cannot be {done}: {advice}",
        task.tid
    )))
}
