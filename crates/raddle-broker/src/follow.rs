//! Following tasks: what one look at the log and at what attempts wrote comes to, and whether another is to follow. Engines do the
//! reading; nothing here waits.

use raddle_core::{Event, State, Tid};

use crate::{Chunk, Cursor, Fence, Progress, Stream};

/// How much of each stream one look gives at most.
pub(crate) const AT_ONCE: u32 = 256 * 1024;

/// A stretch of the log.
pub(crate) struct Stretch {
    pub(crate) events: Vec<Event>,
    /// The last id that was looked at, whether it fitted or not.
    pub(crate) scanned: u64,
    /// Whether there are more that were not looked at.
    pub(crate) more: bool,
}

/// What follows from a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    /// There is something to give.
    Give,
    /// Entries of other tasks have filled the look: the next one goes on behind them, at once.
    GoOn,
    /// There is nothing yet.
    Wait,
}

/// Where a task stands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Standing {
    /// Its latest attempt.
    pub(crate) attempt: u32,
    /// Its terminal state, if it has one.
    pub(crate) done: Option<State>,
}

/// A look at one task while its output is read, attempt by attempt and piece by piece.
pub(crate) struct Look {
    tid: Tid,
    standing: Standing,
    stretch: Stretch,
    cursor: Cursor,
    output: Vec<Chunk>,
    /// The stream that is read next.
    stream: Stream,
    /// Whether the streams of the present attempt gave all they had.
    drained: bool,
    over: bool,
}

/// What is to be read next: up to [`AT_ONCE`] bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) fence: Fence,
    pub(crate) stream: Stream,
    pub(crate) offset: u64,
}

impl Stretch {
    /// What follows for who wants events alone.
    pub(crate) fn then(&self) -> Then {
        match (self.events.is_empty(), self.more) {
            (false, _) => Then::Give,
            (true, true) => Then::GoOn,
            (true, false) => Then::Wait,
        }
    }

    /// Its first events.
    pub(crate) fn first(mut self, max: u32) -> Vec<Event> {
        self.events.truncate(max as usize);
        self.events
    }
}

/// What follows for who follows a task from `before` on.
pub(crate) fn then(before: Cursor, progress: &Progress) -> Then {
    if progress.done.is_some() || !progress.events.is_empty() || !progress.output.is_empty() {
        return Then::Give;
    }
    if progress.cursor.event == before.event { Then::Wait } else { Then::GoOn }
}

impl Look {
    /// A look that begins at `from`. The standing has to be read first: output is complete before the end of an attempt is written.
    pub(crate) fn new(tid: Tid, standing: Standing, stretch: Stretch, from: Cursor) -> Self {
        let cursor = Cursor { event: stretch.scanned, attempt: from.attempt.max(1), ..from };
        let output = Vec::new();
        Self { tid, standing, stretch, cursor, output, stream: Stream::Stdout, drained: true, over: false }
    }

    /// What to read next, if anything.
    pub(crate) fn wanted(&self) -> Option<Piece> {
        let fence = Fence { tid: self.tid, attempt: self.cursor.attempt };
        let offset = match self.stream {
            Stream::Stdout => self.cursor.stdout,
            Stream::Stderr => self.cursor.stderr,
        };
        (!self.over).then_some(Piece { fence, stream: self.stream, offset })
    }

    /// Takes what was read of the piece that was wanted.
    pub(crate) fn add(&mut self, bytes: Vec<u8>) {
        let (stream, attempt, read) = (self.stream, self.cursor.attempt, bytes.len());
        self.drained &= read < AT_ONCE as usize;
        if !bytes.is_empty() {
            self.output.push(Chunk { attempt, stream, bytes });
        }
        match stream {
            Stream::Stdout => {
                self.cursor.stdout += read as u64;
                self.stream = Stream::Stderr;
            }
            Stream::Stderr => {
                self.cursor.stderr += read as u64;
                self.stream = Stream::Stdout;
                self.end_attempt();
            }
        }
    }

    /// What the look came to.
    pub(crate) fn progress(self) -> Progress {
        // Not before all output, and the last event, have been given too.
        let done = self.standing.done.filter(|_| self.drained && !self.stretch.more);
        Progress { output: self.output, events: self.stretch.events, cursor: self.cursor, done }
    }

    /// Goes on to the next attempt, if there is one and this one has no more to give.
    fn end_attempt(&mut self) {
        self.over = !self.drained || self.cursor.attempt >= self.standing.attempt;
        if !self.over {
            self.cursor = Cursor { attempt: self.cursor.attempt + 1, stdout: 0, stderr: 0, ..self.cursor };
        }
    }
}

#[cfg(test)]
mod tests;
