//! Tasks of a process that hangs which have taken too long: they have timed out, whoever says so. Without this they would be taken back as from any
//! worker that has died, and run again, whatever is to become of them.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use raddle_broker::{AttemptId, Broker, Completion, Result};
use raddle_model::{AttemptReport, ExitStatus, Tid};
use tokio::time::timeout;

/// How long the process may live on for it. What it ran is dead by then, so to wait costs nothing but time, and that only while the broker is slow: by so
/// much the process is replaced later. To wait too short a time would cost more: the tasks would be taken back from a dead worker, and run again. But a stop
/// has to be over before whoever has asked for it loses patience: see [`MARGIN`](super::grace).
const WITHIN: Duration = Duration::from_secs(1);
/// How long it is tried. What is not written by then is taken back, as from any worker that has died.
const GIVEN_UP: Duration = Duration::from_secs(5);

/// Ends these tasks of a worker that is about to be killed, which is the process `pid`. Not after that: then they would be anybody's. What they run is ended
/// before it is written that they are over, for the next attempt may begin at once. The worker itself goes on meanwhile: stopped, it could hold what the
/// broker needs to write.
pub(super) async fn end(broker: Arc<dyn Broker>, pid: u32, worker: Tid, tasks: Vec<Tid>) {
    // It does not panic.
    let _ = tokio::task::spawn_blocking(move || raddle_runner::kill_attempts_of_worker(pid)).await;
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
    // Before their worker, whose death would wake them. What it could say of their end is refused, as they are over.
    raddle_runner::kill_runners_of_worker(pid);
}

async fn time_out(broker: &dyn Broker, worker: Tid, tasks: &[Tid]) -> Result<()> {
    let mut batch = Vec::new();
    for tid in tasks {
        let task = broker.task(*tid).await?;
        // Its end may have crossed. That it has begun need not be known: its runner may have hung before it could say so.
        let Some(task) = task.filter(|task| task.worker == Some(worker) && task.state.is_active())
        else {
            continue;
        };
        let attempt_id = AttemptId {
            tid: *tid,
            attempt: task.attempt,
            owner: worker,
        };
        let (queue, exit) = (&task.spec.queue, ExitStatus::Timeout);
        tracing::error!(%tid, attempt = task.attempt, queue, %exit, "an attempt failed: its process hangs");
        let report = AttemptReport::bare(ExitStatus::Timeout, Timestamp::now());
        batch.push(Completion {
            attempt_id,
            report,
            stdout: Vec::new(),
            stderr: Vec::new(),
        });
    }
    if !batch.is_empty() {
        broker.complete(batch).await?;
    }
    Ok(())
}
