//! Overdue tasks of a process that hangs: they are recorded as timed out, by the manager in place
//! of the process. Otherwise they would be reclaimed as tasks of a dead worker, and run again
//! whatever their retry policy says.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use raddle_broker::{AttemptId, Broker, Completion, Result};
use raddle_model::{AttemptReport, ExitStatus, Tid};
use tokio::time::timeout;

/// How long killing the process may be delayed until the broker has recorded the timeouts. The
/// attempts are dead by then, so the delay only means that the process is replaced later, and only
/// while the broker is slow. A shorter wait would cost more: the tasks would be reclaimed from a
/// dead worker, and run again. A stop must still be over within `stop_grace_period`, whose margin
/// is `MARGIN` in `service_manager.rs`.
const MAX_DELAY: Duration = Duration::from_secs(1);
/// When the write is abandoned. Tasks whose timeouts are not recorded by then are reclaimed, as
/// from any worker that has died.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);

/// Times out `tasks` of `worker`, the process `pid`, which is about to be killed. This must happen
/// before the kill: afterwards any worker could reclaim the tasks. Kills the attempts before it
/// records their end, because the next attempt may begin at once. The worker keeps running
/// meanwhile: if it were suspended, it could hold a lock that the broker needs for the write.
pub(super) async fn time_out_tasks(
    broker: Arc<dyn Broker>,
    pid: u32,
    worker: Tid,
    tasks: Vec<Tid>,
) {
    // The closure does not panic.
    let _ = tokio::task::spawn_blocking(move || raddle_runner::kill_attempts_of_worker(pid)).await;
    let writing = tokio::spawn(async move {
        match timeout(
            WRITE_TIMEOUT,
            complete_as_timed_out(&*broker, worker, &tasks),
        )
        .await
        {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(%worker, %error, "overdue tasks of a process that hangs cannot be timed out, and are reclaimed")
            }
            Err(_) => {
                tracing::warn!(%worker, "overdue tasks are reclaimed: the broker does not answer")
            }
        }
    });
    // A write that completes after the delay is a late completion, at worst, and the broker refuses
    // it.
    let _ = timeout(MAX_DELAY, writing).await;
    // Before the worker dies, because its death would continue its runners (PR_SET_PDEATHSIG). The
    // tasks are over, so the broker refuses what the worker itself reports.
    raddle_runner::kill_runners_of_worker(pid);
}

async fn complete_as_timed_out(broker: &dyn Broker, worker: Tid, tasks: &[Tid]) -> Result<()> {
    let mut batch = Vec::new();
    for tid in tasks {
        let task = broker.task(*tid).await?;
        // Its completion may have arrived meanwhile. The state can still be unstarted: the runner
        // may have hung before it reported the start.
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
