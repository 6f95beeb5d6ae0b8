//! Following a task: its output and events as they come, until it is finished.

use std::time::Duration;

use raddle_broker::{Broker, Cursor, Progress, Result};
use raddle_core::{State, Tid};
use tokio::time::Instant;

use crate::{
    error::{Failure, Outcome},
    output,
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

/// Waits until a task is finished, without looking at its output.
pub(crate) async fn until_finished(broker: &dyn Broker, tid: Tid, deadline: Option<Instant>) -> Outcome<State> {
    // Every event is a reason to look; what was before this is not.
    let mut seen = 0;
    loop {
        let view = crate::tid::view(broker, tid).await?;
        if view.state.is_terminal() {
            return Ok(view.state);
        }
        let left = deadline.map_or(LONG, |deadline| deadline.saturating_duration_since(Instant::now()).min(LONG));
        if left.is_zero() {
            let hint = "'raddle task explain' says what it waits for";
            return Err(Failure::TimedOut(format!("task {tid} is still {}: {hint}", view.state)));
        }
        if let Some(last) = broker.events(seen, Some(tid), 1000, left).await?.last() {
            seen = last.id.as_u64();
        }
    }
}
