//! Reads for followers of tasks: evaluates one read of the log and of output, and decides whether
//! to read again. Nothing here waits.

use raddle_model::{TaskEvent, TaskState, Tid};

use crate::{Output, OutputChunk, OutputStream, Result, TaskCursor, TaskUpdate};

/// The most bytes of each stream that one read returns.
pub const CHUNK_BYTES: u32 = 256 * 1024;

/// The events of a range of the log.
pub struct LogRange {
    /// The events.
    pub events: Vec<TaskEvent>,
    /// The last id that was scanned, whether the event matched or not.
    pub scanned: u64,
    /// Whether there are more entries after it.
    pub more: bool,
}

/// The next step after a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FollowStep {
    /// Return what was found.
    Return,
    /// Read on at once: the read was filled with entries of other tasks.
    ReadOn,
    /// Wait for more: everything was read, and nothing was found.
    Wait,
}

/// How far a task has come.
#[derive(Clone, Copy, Debug)]
pub struct TaskPosition {
    /// The latest attempt.
    pub attempt: u32,
    /// The final state, once it is reached.
    pub done: Option<TaskState>,
}

impl LogRange {
    /// The next step of a reader of events.
    pub fn next_step(&self) -> FollowStep {
        match (self.events.is_empty(), self.more) {
            (false, _) => FollowStep::Return,
            (true, true) => FollowStep::ReadOn,
            (true, false) => FollowStep::Wait,
        }
    }

    /// The first `max` events.
    pub fn into_first(mut self, max: u32) -> Vec<TaskEvent> {
        self.events.truncate(max as usize);
        self.events
    }
}

/// The next step of a reader of a task that started to read at `before`.
pub fn next_step(before: TaskCursor, update: &TaskUpdate) -> FollowStep {
    if update.done.is_some() || !update.events.is_empty() || !update.output.is_empty() {
        return FollowStep::Return;
    }
    if update.cursor.event == before.event {
        FollowStep::Wait
    } else {
        FollowStep::ReadOn
    }
}

/// Reads output attempt by attempt, and returns it with the events of `range` as the update after
/// `from`. `position` must have been read before: output is complete when the end of its attempt is
/// recorded.
pub async fn read_update(
    broker: &impl Output,
    tid: Tid,
    position: TaskPosition,
    range: LogRange,
    from: TaskCursor,
) -> Result<TaskUpdate> {
    let mut cursor = TaskCursor {
        event: range.scanned,
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
                .read_output(tid, attempt, stream, *seen, CHUNK_BYTES)
                .await?;
            *seen += bytes.len() as u64;
            drained &= bytes.len() < CHUNK_BYTES as usize;
            if !bytes.is_empty() {
                output.push(OutputChunk {
                    attempt,
                    stream,
                    bytes,
                });
            }
        }
        if !drained || cursor.attempt >= position.attempt {
            // Reported only with the last output and the last event.
            let done = position.done.filter(|_| drained && !range.more);
            return Ok(TaskUpdate {
                output,
                events: range.events,
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
