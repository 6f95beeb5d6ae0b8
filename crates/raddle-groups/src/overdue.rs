//! Timing out the overdue tasks of a hanging process. Otherwise they would be reclaimed as from any
//! dead worker, and run again, whatever their retry policy says.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use raddle_broker::{AttemptId, Broker, Completion, Result};
use raddle_model::{AttemptReport, ExitStatus, Tid};
use tokio::time::timeout;

/// How long the process stays alive for this write. Its attempts are dead by then, so the wait only
/// delays its replacement, and only while the broker is slow. Too short a wait costs more: the
/// tasks would be reclaimed and run again. But a stop must end before its requester loses patience,
/// see `MARGIN` in `service_manager.rs`.
const WRITE_WAIT: Duration = Duration::from_secs(1);
/// How long the write is tried. After that the tasks are reclaimed, as from any dead worker.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);

/// Times out these tasks of a worker that is about to be killed, the process `pid`. This happens
/// before the kill: after it other workers could reclaim the tasks. The attempts are killed before
/// their end is written, because the next attempt may start at once. The worker itself is not
/// stopped: it could hold a lock that the broker needs for the write.
pub(super) async fn time_out_and_kill(
    broker: Arc<dyn Broker>,
    pid: u32,
    worker: Tid,
    tasks: Vec<Tid>,
) {
    // It does not panic.
    let _ = tokio::task::spawn_blocking(move || raddle_runner::kill_attempts_of_worker(pid)).await;
    let writing = tokio::spawn(async move {
        match timeout(WRITE_TIMEOUT, time_out(&*broker, worker, &tasks)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(%worker, %error, "overdue tasks of a hanging process will be reclaimed: they could not be timed out")
            }
            Err(_) => {
                tracing::warn!(%worker, "overdue tasks of a hanging process will be reclaimed: the broker does not answer")
            }
        }
    });
    // A later write is refused as stale, at worst.
    let _ = timeout(WRITE_WAIT, writing).await;
    // Before the worker: its death would resume stopped runners. Their own results are refused by
    // now.
    raddle_runner::kill_runners_of_worker(pid);
}

async fn time_out(broker: &dyn Broker, worker: Tid, tasks: &[Tid]) -> Result<()> {
    let mut batch = Vec::new();
    for tid in tasks {
        let task = broker.task(*tid).await?;
        // The attempt may have ended meanwhile. It need not be recorded as started: its runner may
        // have hung before that.
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
