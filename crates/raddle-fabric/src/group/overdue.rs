//! Tasks of a process that hangs which have taken too long: they have timed out, whoever says so. Without this they would be taken back as from any
//! worker that has died, and run again, whatever is to become of them.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use raddle_broker::{Broker, Fence, Finish, Result};
use raddle_core::{Exit, Report, State, Tid};
use tokio::time::timeout;

/// How long the process may live on for it: by so much it is replaced later, if the broker is slow.
const WITHIN: Duration = Duration::from_millis(200);
/// How long it is tried. What is not written by then is taken back, as from any worker that has died.
const GIVEN_UP: Duration = Duration::from_secs(5);

/// Ends these tasks of a worker that is about to be killed. Not after that: then they would be anybody's.
pub(super) async fn end(broker: Arc<dyn Broker>, worker: Tid, tasks: Vec<Tid>) {
    let writing = tokio::spawn(async move {
        match timeout(GIVEN_UP, time_out(&*broker, worker, &tasks)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(%worker, %error, "tasks that have taken too long are taken back from a process that hangs")
            }
            Err(_) => {
                tracing::warn!(%worker, "tasks that have taken too long are taken back: the broker does not answer")
            }
        }
    });
    // One that is written later is a late finish, at the worst, and refused.
    let _ = timeout(WITHIN, writing).await;
}

async fn time_out(broker: &dyn Broker, worker: Tid, tasks: &[Tid]) -> Result<()> {
    let mut batch = Vec::new();
    for tid in tasks {
        let task = broker.task(*tid).await?;
        // Its end may have crossed.
        let Some(task) = task.filter(|task| task.worker == Some(worker) && task.state == State::Running) else {
            continue;
        };
        let fence = Fence { tid: *tid, attempt: task.attempt };
        let report = Report::bare(Exit::Timeout, Timestamp::now());
        batch.push(Finish { fence, report, stdout: Vec::new(), stderr: Vec::new() });
    }
    if !batch.is_empty() {
        broker.finish(batch).await?;
    }
    Ok(())
}
