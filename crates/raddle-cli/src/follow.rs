//! Waits for tasks.

use raddle_broker::{Broker, TaskUpdate};
pub(crate) use raddle_client::explain::{EXPLAIN_AFTER, PrintedReasons, announce_wait};
use raddle_client::{
    explain,
    wait::{self, is_within},
};
use raddle_model::{TaskEventKind, TaskState, Tid};
use raddle_view::task::OUTPUT_LOST;
use tokio::time::{Instant, timeout_at};

use crate::{
    context::Context,
    error::{Failure, Outcome},
    spec,
};

/// Refuses to wait for the task that this process belongs to, or for an ancestor of it.
pub(crate) async fn check_not_within(broker: &dyn Broker, tid: Tid) -> Outcome<()> {
    if is_within(broker, spec::current_task(), tid).await? {
        Err(recursive_wait(tid))
    } else {
        Ok(())
    }
}

/// The error for a wait that would wait for itself.
pub(crate) fn recursive_wait(tid: Tid) -> Failure {
    let reason = "this command is part of the task, and would wait for itself";
    Failure::Usage(format!("cannot follow task {tid}: {reason}"))
}

/// The messages about output that the broker could not keep.
pub(crate) fn lost_output_notes(progress: &TaskUpdate) -> impl Iterator<Item = &str> {
    let lost = progress
        .events
        .iter()
        .filter(|event| event.event == TaskEventKind::OutputLost);
    lost.map(|event| event.detail.as_deref().unwrap_or(OUTPUT_LOST))
}

/// Runs `work`, which waits for a task. Meanwhile it prints why the task does not run.
pub(crate) async fn explain_while<T>(
    context: &Context,
    broker: &dyn Broker,
    tid: Tid,
    printed: &mut PrintedReasons,
    work: impl Future<Output = T>,
) -> T {
    explain::explain_while(broker, tid, printed, |line| context.note(line), work).await
}

/// Waits until a task is finished, without reading its output.
pub(crate) async fn wait_until_finished(
    broker: &dyn Broker,
    tid: Tid,
    deadline: Option<Instant>,
) -> Outcome<TaskState> {
    let finished = wait::until_finished(broker, tid);
    let Some(deadline) = deadline else {
        return Ok(finished.await?.state);
    };
    if let Ok(finished) = timeout_at(deadline, finished).await {
        return Ok(finished?.state);
    }
    let state = crate::tid::get_task(broker, tid).await?.state;
    if state.is_terminal() {
        return Ok(state);
    }
    let hint = "'raddle task explain' shows why";
    Err(Failure::TimedOut(format!(
        "task {tid} is still {state}: {hint}"
    )))
}
