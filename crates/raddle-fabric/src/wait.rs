//! Waiting for the end of a task.

use std::time::Duration;

use raddle_broker::{Broker, Error, Result};
use raddle_core::{TaskView, Tid};

/// How often to look whether the worker that has a task is still there. Delays only what a dead worker has left behind.
pub const WATCH_WORKERS: Duration = Duration::from_secs(1);

/// Waits until a task is finished, and returns what became of it.
pub async fn until_finished(broker: &dyn Broker, tid: Tid) -> Result<TaskView> {
    let mut seen = 0;
    loop {
        let view = broker.task(tid).await?.ok_or(Error::NotFound(tid))?;
        if view.state.is_terminal() {
            return Ok(view);
        }
        match broker.events(seen, Some(tid), 1000, WATCH_WORKERS).await?.last() {
            Some(last) => seen = last.id.as_u64(),
            None => take_from_the_dead(broker, &view).await?,
        }
    }
}

/// Takes a task back from a worker that is gone. Live workers do this by themselves; without one, nobody else would.
pub async fn take_from_the_dead(broker: &dyn Broker, task: &TaskView) -> Result<()> {
    if task.state.is_active() && !broker.workers().await?.iter().any(|worker| Some(worker.tid) == task.worker) {
        broker.reclaim().await?;
    }
    Ok(())
}
