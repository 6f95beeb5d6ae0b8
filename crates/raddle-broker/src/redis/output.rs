//! What attempts wrote: small output that came whole in one hash, all other under keys of its own.

use std::time::Duration;

use async_trait::async_trait;
use raddle_core::{State, Tid};

use super::{
    Redis,
    keys::{Topic, output_field},
    link::Sure,
    log, script,
    value::{arg, bytes},
};
use crate::{Chunk, Cursor, Error, Fence, Output, Progress, Result, Stream};

/// How much is kept of each stream of an attempt: what comes after that is counted in its report, and not kept. All of it is in the
/// server's memory.
pub(super) const MAX_KEPT: u64 = 64 * 1024 * 1024;
/// How much output may stand beside the record of a task, where a read gives it whole.
pub(super) const WHOLE_BYTES: usize = 64 * 1024;
/// How much of each stream one look gives at most.
const AT_ONCE: u32 = 256 * 1024;

#[async_trait]
impl Output for Redis {
    async fn append_output(&self, fence: Fence, stream: Stream, bytes: Vec<u8>) -> Result<()> {
        let args = vec![arg(fence.tid), arg(fence.attempt), arg(MAX_KEPT), bytes];
        let keys = vec![self.core.keys.output(fence, stream)];
        self.link().change(&script::APPEND, keys, args, Sure::Done).await.map(drop)
    }

    async fn read_output(&self, fence: Fence, stream: Stream, offset: u64, max: u32) -> Result<Vec<u8>> {
        let mut pipe = redis::pipe();
        let last = offset.saturating_add(u64::from(max)).min(i64::MAX as u64);
        if max == 0 || offset >= MAX_KEPT {
            return Ok(Vec::new());
        }
        pipe.cmd("GETRANGE").arg(self.core.keys.output(fence, stream)).arg(offset).arg(last - 1);
        pipe.cmd("HGET").arg(self.core.keys.of("output")).arg(output_field(fence, stream));
        let mut answers = self.link().pipe(pipe).await?.into_iter();
        let live = answers.next().map(bytes).unwrap_or_default();
        let whole = answers.next().map(bytes).unwrap_or_default();
        if !live.is_empty() || whole.is_empty() {
            return Ok(live);
        }
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(whole.len());
        Ok(whole[start..start.saturating_add(max as usize).min(whole.len())].to_vec())
    }

    async fn follow(&self, tid: Tid, cursor: Cursor, wait: Duration) -> Result<Progress> {
        let mut cursor = cursor;
        let mut wait = self.wait(Topic::Log, wait).await;
        loop {
            let progress = self.progress(tid, cursor).await?;
            let more = progress.cursor.event != cursor.event;
            cursor = progress.cursor;
            let news = progress.done.is_some() || !progress.events.is_empty() || !progress.output.is_empty();
            // Entries of other tasks may have filled the look: then the next one goes on behind them, at once.
            if news || !(more || wait.again(None).await) {
                return Ok(progress);
            }
        }
    }
}

impl Redis {
    async fn progress(&self, tid: Tid, from: Cursor) -> Result<Progress> {
        // State first: output is complete before the end of an attempt is written.
        let (attempt, done) = self.standing(tid).await?;
        let stretch = log::of_one(self.link(), tid, from.event).await?;
        let mut cursor = Cursor { event: stretch.scanned, attempt: from.attempt.max(1), ..from };
        let mut output = Vec::new();
        loop {
            let fence = Fence { tid, attempt: cursor.attempt };
            let mut drained = true;
            for stream in Stream::BOTH {
                let offset = match stream {
                    Stream::Stdout => &mut cursor.stdout,
                    Stream::Stderr => &mut cursor.stderr,
                };
                let bytes = self.read_output(fence, stream, *offset, AT_ONCE).await?;
                *offset += bytes.len() as u64;
                drained &= bytes.len() < AT_ONCE as usize;
                if !bytes.is_empty() {
                    output.push(Chunk { attempt: cursor.attempt, stream, bytes });
                }
            }
            if !drained {
                return Ok(Progress { output, events: stretch.events, cursor, done: None });
            }
            if cursor.attempt >= attempt {
                // Not before the last event has been given too.
                let done = done.filter(|_| !stretch.more);
                return Ok(Progress { output, events: stretch.events, cursor, done });
            }
            cursor = Cursor { attempt: cursor.attempt + 1, stdout: 0, stderr: 0, ..cursor };
        }
    }

    /// A task's latest attempt, and its terminal state if it has one.
    async fn standing(&self, tid: Tid) -> Result<(u32, Option<State>)> {
        let task = self.snapshot(tid).await?.ok_or(Error::NotFound(tid))?;
        match &task.done {
            Some(done) => Ok((done.tally.attempt, Some(done.state))),
            None => Ok((task.record.tally.attempt, None)),
        }
    }
}
