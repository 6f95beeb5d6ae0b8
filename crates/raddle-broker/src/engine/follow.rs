//! Following tasks: what one look at the log and at what attempts wrote comes to, and whether another is to follow. Nothing here waits.

use raddle_model::{TaskEvent, TaskState, Tid};

use crate::{Output, OutputChunk, OutputStream, Result, TaskCursor, TaskUpdate};

/// How much of each stream one look gives at most.
pub const AT_ONCE: u32 = 256 * 1024;

/// A stretch of the log.
pub struct LogRange {
    /// The events.
    pub events: Vec<TaskEvent>,
    /// The last id that was looked at, whether it fitted or not.
    pub scanned: u64,
    /// Whether there are more that were not looked at.
    pub more: bool,
}

/// What follows from a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FollowStep {
    /// There is something to give.
    Give,
    /// Entries of other tasks have filled the look: the next one goes on behind them, at once.
    GoOn,
    /// There is nothing yet.
    Wait,
}

/// Where a task stands.
#[derive(Clone, Copy, Debug)]
pub struct TaskPosition {
    /// Its latest attempt.
    pub attempt: u32,
    /// Its terminal state, if it has one.
    pub done: Option<TaskState>,
}

impl LogRange {
    /// What follows for who wants events alone.
    pub fn then(&self) -> FollowStep {
        match (self.events.is_empty(), self.more) {
            (false, _) => FollowStep::Give,
            (true, true) => FollowStep::GoOn,
            (true, false) => FollowStep::Wait,
        }
    }

    /// Its first events.
    pub fn first(mut self, max: u32) -> Vec<TaskEvent> {
        self.events.truncate(max as usize);
        self.events
    }
}

/// What follows for who follows a task from `before` on.
pub fn then(before: TaskCursor, progress: &TaskUpdate) -> FollowStep {
    if progress.done.is_some() || !progress.events.is_empty() || !progress.output.is_empty() {
        return FollowStep::Give;
    }
    if progress.cursor.event == before.event {
        FollowStep::Wait
    } else {
        FollowStep::GoOn
    }
}

/// Reads what attempts wrote, attempt by attempt, and says what the look that begins at `from` came to. The standing has to be read before: output is complete when
/// the end of an attempt is written.
pub async fn look(
    broker: &impl Output,
    tid: Tid,
    standing: TaskPosition,
    stretch: LogRange,
    from: TaskCursor,
) -> Result<TaskUpdate> {
    let mut cursor = TaskCursor {
        event: stretch.scanned,
        attempt: from.attempt.max(1),
        ..from
    };
    let mut output = Vec::new();
    loop {
        let (attempt, mut drained) = (cursor.attempt, true);
        for stream in OutputStream::BOTH {
            let seen = match stream {
                OutputStream::Stdout => &mut cursor.stdout,
                OutputStream::Stderr => &mut cursor.stderr,
            };
            let bytes = broker
                .read_output(tid, attempt, stream, *seen, AT_ONCE)
                .await?;
            *seen += bytes.len() as u64;
            drained &= bytes.len() < AT_ONCE as usize;
            if !bytes.is_empty() {
                output.push(OutputChunk {
                    attempt,
                    stream,
                    bytes,
                });
            }
        }
        if !drained || cursor.attempt >= standing.attempt {
            // Not before all output, and the last event, have been given too.
            let done = standing.done.filter(|_| drained && !stretch.more);
            return Ok(TaskUpdate {
                output,
                events: stretch.events,
                cursor,
                done,
            });
        }
        cursor = TaskCursor {
            attempt: cursor.attempt + 1,
            stdout: 0,
            stderr: 0,
            ..cursor
        };
    }
}

#[cfg(test)]
mod tests;
