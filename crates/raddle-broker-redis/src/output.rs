//! Output of attempts: small output that came at once in one hash, all other output under keys of
//! its own.

use std::time::Duration;

use async_trait::async_trait;
use raddle_model::Tid;

use super::{
    Redis,
    connection::Certainty,
    log,
    schema::{Topic, output_field},
    script,
    url::MAX_OUTPUT,
    value::arg,
};
use raddle_broker::{
    AttemptId, Error, Output, OutputStream, Result, TaskCursor, TaskUpdate,
    engine::follow::{self, FollowStep, TaskPosition},
};

/// The largest output that is stored in the hash, where every read returns all of it.
pub(super) const WHOLE_BYTES: u64 = 64 * 1024;

#[async_trait]
impl Output for Redis {
    async fn read_output(
        &self,
        tid: Tid,
        attempt: u32,
        stream: OutputStream,
        offset: u64,
        max: u32,
    ) -> Result<Vec<u8>> {
        let mut pipe = redis::pipe();
        let offset = offset.min(MAX_OUTPUT);
        let last = offset + u64::from(max);
        if max == 0 {
            return Ok(Vec::new());
        }
        pipe.cmd("GETRANGE")
            .arg(self.core.keys.output(tid, attempt, stream))
            .arg(offset)
            .arg(last - 1);
        pipe.cmd("HGET")
            .arg(self.core.keys.named("output"))
            .arg(output_field(tid, attempt, stream));
        let (live, whole): (Vec<u8>, Option<Vec<u8>>) = self.link().query(&pipe).await?;
        let whole = whole.unwrap_or_default();
        if !live.is_empty() || whole.is_empty() {
            return Ok(live);
        }
        let start = usize::try_from(offset)
            .unwrap_or(usize::MAX)
            .min(whole.len());
        Ok(whole[start..start.saturating_add(max as usize).min(whole.len())].to_vec())
    }

    async fn follow(&self, tid: Tid, cursor: TaskCursor, wait: Duration) -> Result<TaskUpdate> {
        let mut cursor = cursor;
        let mut wait = self.wait(Topic::Log, wait).await;
        loop {
            let progress = self.progress(tid, cursor).await?;
            let step = follow::next_step(cursor, &progress);
            cursor = progress.cursor;
            if step == FollowStep::Return || step == FollowStep::Wait && !wait.next(None).await {
                return Ok(progress);
            }
        }
    }
}

impl Redis {
    /// Appends to the output of an attempt, unless it is stale.
    pub(super) async fn append(
        &self,
        attempt_id: AttemptId,
        stream: OutputStream,
        bytes: Vec<u8>,
    ) -> Result<()> {
        let AttemptId {
            tid,
            attempt,
            owner,
        } = attempt_id;
        let args = vec![
            arg(tid),
            arg(attempt),
            arg(owner),
            arg(stream as u8),
            arg(self.link().max_output()),
            bytes,
        ];
        self.link()
            .change(&script::APPEND, args, Certainty::Done)
            .await
    }

    async fn progress(&self, tid: Tid, from: TaskCursor) -> Result<TaskUpdate> {
        let standing = self.standing(tid).await?;
        let range = log::of_one(self.link(), tid, from.event).await?;
        follow::read_update(self, tid, standing, range, from).await
    }

    async fn standing(&self, tid: Tid) -> Result<TaskPosition> {
        let task = self.snapshot(tid).await?.ok_or(Error::NotFound(tid))?;
        let counters = task
            .done
            .as_ref()
            .map_or(task.record.counters, |done| done.counters);
        Ok(TaskPosition {
            attempt: counters.attempt,
            done: task.end(),
        })
    }
}
