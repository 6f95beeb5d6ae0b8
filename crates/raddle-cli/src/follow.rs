//! Waiting for tasks, and showing what they write.

use std::{convert::Infallible, mem::Discriminant, time::Duration};

use raddle_broker::{Broker, Progress};
use raddle_core::{EventKind, State, TaskView, Tid};
use raddle_fabric::wait::{self, is_within};
use tokio::time::{Instant, sleep, timeout_at};

use crate::{
    commands::explain::{Reason, explain_task},
    context::Context,
    error::{Failure, Outcome},
    result::OUTPUT_LOST,
    spec,
};

/// When a command first checks why its task waits. Most waits are over by then, and cost no query.
const FIRST_CHECK: Duration = Duration::from_millis(100);
/// How long a command waits for a task that does not run before it says why.
pub(crate) const EXPLAIN_AFTER: Duration = Duration::from_secs(2);

/// Refuses to wait for the task that this process belongs to, or for one that waits for that.
pub(crate) async fn refuse_own(broker: &dyn Broker, tid: Tid) -> Outcome<()> {
    if is_within(broker, spec::own_task(), tid).await? { Err(recursive(tid)) } else { Ok(()) }
}

/// The refusal of a wait that would never end.
pub(crate) fn recursive(tid: Tid) -> Failure {
    let reason = "this command is part of it, and would wait for its own end";
    Failure::Usage(format!("cannot follow task {tid}: {reason}"))
}

/// What of a task's output could not be kept, and so will not be shown.
pub(crate) fn lost(progress: &Progress) -> impl Iterator<Item = &str> {
    let lost = progress.events.iter().filter(|event| event.event == EventKind::OutputLost);
    lost.map(|event| event.detail.as_deref().unwrap_or(OUTPUT_LOST))
}

/// The reasons for waiting that a command has printed. It prints each once, also where it waits for many tasks.
#[derive(Default)]
pub(crate) struct PrintedReasons(Vec<Discriminant<Reason>>);

/// Runs `work`, which waits for a task, and notes meanwhile why the task does not run.
pub(crate) async fn explain_while<T>(
    context: &Context,
    broker: &dyn Broker,
    tid: Tid,
    printed: &mut PrintedReasons,
    work: impl Future<Output = T>,
) -> T {
    let waits = |task: &TaskView| task.state == State::Created || (task.paused && !task.state.is_terminal());
    tokio::select! {
        biased;
        done = work => done,
        never = announce_wait(broker, tid, printed, waits, |line| context.note(line)) => match never {},
    }
}

/// Prints why a task does not run, once for each reason. `waits` tells whether the task needs an explanation: one that runs does not.
pub(crate) async fn announce_wait(
    broker: &dyn Broker,
    tid: Tid,
    PrintedReasons(printed): &mut PrintedReasons,
    waits: impl Fn(&TaskView) -> bool,
    print: impl Fn(String),
) -> Infallible {
    let (mut last, mut is_first) = (None, true);
    sleep(FIRST_CHECK).await;
    loop {
        let mut found = None;
        // An error is reported by the wait itself.
        if let Ok(Some(task)) = broker.task(tid).await
            && waits(&task)
            && let Ok(explanation) = explain_task(broker, &task).await
        {
            let kind = explanation.kind();
            found = Some(kind);
            // A task that has had an attempt may be between two of them just now.
            let lasts = !is_first && (task.attempt == 0 || found == last);
            if (lasts || explanation.is_unserved()) && !printed.contains(&kind) {
                print(explanation.line(&task));
                printed.push(kind);
            }
        }
        (last, is_first) = (found, false);
        sleep(EXPLAIN_AFTER).await;
    }
}

/// Waits until a task is finished, without looking at its output.
pub(crate) async fn until_finished(broker: &dyn Broker, tid: Tid, deadline: Option<Instant>) -> Outcome<State> {
    let finished = wait::until_finished(broker, tid);
    let Some(deadline) = deadline else { return Ok(finished.await?.state) };
    if let Ok(finished) = timeout_at(deadline, finished).await {
        return Ok(finished?.state);
    }
    let state = crate::tid::view(broker, tid).await?.state;
    if state.is_terminal() {
        return Ok(state);
    }
    let hint = "'raddle task explain' says what it waits for";
    Err(Failure::TimedOut(format!("task {tid} is still {state}: {hint}")))
}
