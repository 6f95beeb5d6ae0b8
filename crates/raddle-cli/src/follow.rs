//! Following a task: its output and events as they come, until it is finished.

use std::time::Duration;

use raddle_broker::{Broker, Cursor, Progress, Result};
use raddle_core::{EventKind, State, Tid};
use tokio::time::{Instant, timeout_at};

use crate::{
    error::{Failure, Outcome},
    output, spec,
};

/// One look waits no longer than this before it is begun again, so that a wait without end can be written down.
pub(crate) const LONG: Duration = Duration::from_secs(3600);

/// A reader of one task's output and events.
pub(crate) struct Follower {
    tid: Tid,
    cursor: Cursor,
}

impl Follower {
    /// From the beginning.
    pub(crate) fn new(tid: Tid) -> Self {
        Self { tid, cursor: Cursor::default() }
    }

    /// How far it has come.
    pub(crate) fn cursor(&self) -> Cursor {
        self.cursor
    }

    /// Whether nothing has been looked at yet.
    pub(crate) fn is_at_start(&self) -> bool {
        self.cursor == Cursor::default()
    }

    /// What is new; waits for it. Nothing is lost when the future is dropped.
    pub(crate) async fn next(&mut self, broker: &dyn Broker, wait: Duration) -> Result<Progress> {
        let progress = broker.follow(self.tid, self.cursor, wait).await?;
        self.cursor = progress.cursor;
        Ok(progress)
    }
}

/// Refuses to wait for the task that this process belongs to, or for one that waits for that: it would be its own last wish.
pub(crate) async fn refuse_own(broker: &dyn Broker, tid: Tid) -> Outcome<()> {
    let mut within = spec::own_task();
    while let Some(task) = within
        // What a task submits comes after it, so no older one can be among those that it belongs to.
        && task >= tid
    {
        if task == tid {
            let reason = "this command is part of it, and would wait for its own end";
            return Err(Failure::Usage(format!("cannot follow task {tid}: {reason}")));
        }
        within = broker.task(task).await?.and_then(|task| task.parent).filter(|parent| *parent < task);
    }
    Ok(())
}

/// Passes on what a task wrote.
pub(crate) fn show(progress: &Progress) -> Outcome<()> {
    progress.output.iter().try_for_each(|chunk| output::pass_on(chunk.stream, &chunk.bytes))
}

/// What of a task's output could not be kept, and so will not be shown.
pub(crate) fn lost(progress: &Progress) -> impl Iterator<Item = &str> {
    let lost = progress.events.iter().filter(|event| event.event == EventKind::OutputLost);
    lost.map(|event| event.detail.as_deref().unwrap_or("some of its output could not be kept"))
}

/// Waits until a task is finished, without looking at its output.
pub(crate) async fn until_finished(broker: &dyn Broker, tid: Tid, deadline: Option<Instant>) -> Outcome<State> {
    let finished = raddle_fabric::wait::until_finished(broker, tid);
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
