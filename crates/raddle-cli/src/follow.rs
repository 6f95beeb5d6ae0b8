//! Following a task: its output and events as they come, until it is finished.

use std::time::Duration;

use raddle_broker::{Broker, Cursor, Progress, Result};
use raddle_core::{State, TaskView, Tid};
use tokio::time::Instant;

use crate::{
    error::{Failure, Outcome},
    output,
};

/// One look waits no longer than this before it is begun again, so that a wait without end can be written down.
pub(crate) const LONG: Duration = Duration::from_secs(3600);

/// How often to look whether the worker that has a task is still there. Delays only what a dead worker has left behind.
pub(crate) const WATCH_WORKERS: Duration = Duration::from_secs(1);

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

/// Passes on what a task wrote.
pub(crate) fn show(progress: &Progress) -> Outcome<()> {
    progress.output.iter().try_for_each(|chunk| output::pass_on(chunk.stream, &chunk.bytes))
}

/// Takes a task back from a worker that is gone. Live workers do this by themselves; without one, nobody else would.
pub(crate) async fn take_from_the_dead(broker: &dyn Broker, task: &TaskView) -> Outcome<()> {
    let is_owned = matches!(task.state, State::Spawning | State::Running);
    if is_owned && !broker.workers().await?.iter().any(|worker| Some(worker.tid) == task.worker) {
        broker.reclaim().await?;
    }
    Ok(())
}

/// Waits until a task is finished, without looking at its output.
pub(crate) async fn until_finished(broker: &dyn Broker, tid: Tid, deadline: Option<Instant>) -> Outcome<State> {
    // Every event is a reason to look; what was before this is not.
    let mut seen = 0;
    loop {
        let view = crate::tid::view(broker, tid).await?;
        if view.state.is_terminal() {
            return Ok(view.state);
        }
        let left = deadline.map_or(LONG, |deadline| deadline.saturating_duration_since(Instant::now()));
        if left.is_zero() {
            let hint = "'raddle task explain' says what it waits for";
            return Err(Failure::TimedOut(format!("task {tid} is still {}: {hint}", view.state)));
        }
        match broker.events(seen, Some(tid), 1000, left.min(WATCH_WORKERS)).await?.last() {
            Some(last) => seen = last.id.as_u64(),
            None => take_from_the_dead(broker, &view).await?,
        }
    }
}
