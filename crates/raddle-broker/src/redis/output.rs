//! What attempts wrote: small output that came whole in one hash, all other under keys of its own.

use std::time::Duration;

use async_trait::async_trait;
use raddle_core::Tid;

use super::{
    Redis,
    keys::{Topic, output_field},
    link::Sure,
    log, script,
    value::{arg, bytes},
};
use crate::{
    Cursor, Error, Fence, Output, Progress, Result, Stream,
    follow::{self, AT_ONCE, Look, Piece, Standing, Then},
};

/// How much is kept of each stream of an attempt: what comes after that is counted in its report, and not kept. All of it is in the
/// server's memory.
pub(super) const MAX_KEPT: u64 = 64 * 1024 * 1024;
/// How much output may stand beside the record of a task, where a read gives it whole.
pub(super) const WHOLE_BYTES: usize = 64 * 1024;

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
            let then = follow::then(cursor, &progress);
            cursor = progress.cursor;
            if then == Then::Give || then == Then::Wait && !wait.again(None).await {
                return Ok(progress);
            }
        }
    }
}

impl Redis {
    async fn progress(&self, tid: Tid, from: Cursor) -> Result<Progress> {
        let standing = self.standing(tid).await?;
        let stretch = log::of_one(self.link(), tid, from.event).await?;
        let mut look = Look::new(tid, standing, stretch, from);
        while let Some(Piece { fence, stream, offset }) = look.wanted() {
            look.add(self.read_output(fence, stream, offset, AT_ONCE).await?);
        }
        Ok(look.progress())
    }

    async fn standing(&self, tid: Tid) -> Result<Standing> {
        let task = self.snapshot(tid).await?.ok_or(Error::NotFound(tid))?;
        let tally = task.done.as_ref().map_or(task.record.tally, |done| done.tally);
        Ok(Standing { attempt: tally.attempt, done: task.end() })
    }
}
