//! Lists and views of tasks, and the implementation of [`Tasks`] by the files beside this one.

mod find;
mod summary;
mod waiting;

use std::time::Duration;

use async_trait::async_trait;
use raddle_model::{ControlMessage, TaskView, Tid, tid::ShortTid};

use super::{
    Redis,
    change::Snapshot,
    complete,
    log::{born, known},
    reclaim,
    record::TaskLocation,
    schema::{Topic, stream_id},
    value::{Entries, at_micros, at_nanos},
};
use raddle_broker::{
    AttemptStarted, AttemptUpdate, AttemptUpdateKind, ChainRequest, ClaimRequest, Completion,
    CompletionOutcome, ControlDelivery, DeliveryOutcome, EngineHealth, Error, LeasedTask, NewTask,
    Queries, Reclaimed, Release, Result, SubmitAndClaim, SubmitAndClaimOutcome, Submitted, Summary,
    SummaryDetail, TaskFilter, TaskPage, Tasks, WaitingRequest,
};

pub(super) use find::has_wanted_state;

/// The number of candidate ids checked at once for a short id.
const COMPLETED_AT_ONCE: usize = 5000;

#[async_trait]
impl Tasks for Redis {
    async fn submit(&self, batch: Vec<NewTask>) -> Result<Vec<Submitted>> {
        self.submit_batch(batch).await
    }

    async fn submit_and_claim(&self, request: SubmitAndClaim) -> Result<SubmitAndClaimOutcome> {
        self.submit_and_claim_for(request).await
    }

    async fn claim(&self, request: ClaimRequest) -> Result<Vec<LeasedTask>> {
        self.claim_detached(request).await
    }

    async fn update_attempts(&self, batch: Vec<AttemptUpdate>) -> Result<()> {
        let mut started = Vec::new();
        for AttemptUpdate { attempt_id, kind } in batch {
            match kind {
                AttemptUpdateKind::Started(pid) => started.push(AttemptStarted { attempt_id, pid }),
                AttemptUpdateKind::Paused(paused) => {
                    self.mark_attempt_paused(attempt_id, paused).await?
                }
                AttemptUpdateKind::Progress(progress) => {
                    self.store_progress(attempt_id, &progress).await?
                }
                AttemptUpdateKind::Output(stream, bytes) => {
                    self.append(attempt_id, stream, bytes).await?
                }
            }
        }
        self.mark_attempts_started(started).await
    }

    async fn chain(&self, chain: ChainRequest) -> Result<u64> {
        self.chain_tasks(&chain).await
    }

    async fn complete(&self, batch: Vec<Completion>) -> Result<Vec<CompletionOutcome>> {
        self.core
            .unconfirmed
            .complete(self, batch, async |batch| self.complete_batch(batch).await)
            .await
    }

    async fn release(&self, batch: Vec<Release>) -> Result<Vec<CompletionOutcome>> {
        complete::release(self.link(), batch).await
    }

    async fn reclaim(&self) -> Result<Vec<Reclaimed>> {
        reclaim::reclaim(self.link()).await
    }

    async fn control(&self, tid: Tid, message: ControlMessage) -> Result<DeliveryOutcome> {
        self.send_command(tid, message).await
    }

    async fn recv_commands(&self, owner: Tid, wait: Duration) -> Result<Vec<ControlDelivery>> {
        let mut wait = self.wait(Topic::Control, wait).await;
        loop {
            let deliveries = self.take_commands(owner).await?;
            if !deliveries.is_empty() || !wait.next(None).await {
                return Ok(deliveries);
            }
        }
    }

    async fn resubmit(&self, tid: Tid, dead: bool) -> Result<Tid> {
        let old = self.task(tid).await?.ok_or(Error::NotFound(tid))?;
        self.submit_again(tid, NewTask::resubmit(old, dead)?, dead)
            .await
    }

    async fn find_tasks(&self, filter: TaskFilter) -> Result<TaskPage> {
        self.find(&filter).await
    }

    async fn count_waiting(&self, request: WaitingRequest) -> Result<u64> {
        self.wait_for_waiting(request).await
    }

    async fn set_queue_paused(&self, queue: String, paused: bool) -> Result<bool> {
        self.set_paused(queue, paused).await
    }

    async fn summarize(&self, detail: SummaryDetail) -> Result<Summary> {
        self.count_all(detail).await
    }

    async fn delete(&self, tids: Vec<Tid>) -> Result<u64> {
        self.delete_records(tids).await
    }

    async fn purge(&self) -> Result<u64> {
        let purged = self.purge_expired().await;
        self.delete_old_replies().await;
        purged
    }

    async fn health(&self) -> Result<EngineHealth> {
        self.check_health().await
    }
}

impl Redis {
    /// Finds ids by their last digits. Such ids are equidistant, so each candidate is one lookup,
    /// without an index.
    async fn complete_short(&self, short: ShortTid) -> Result<Vec<Tid>> {
        let mut found = Vec::new();
        let mut most = Some(i64::MAX as u64);
        // After each page of candidates, continue at the next existing task, so that gaps of years
        // cost nothing.
        while let Some(there) = match most {
            Some(most) => self.born_up_to(most).await?,
            None => None,
        } {
            let candidates =
                std::iter::successors(short.at_most(there), |id| short.at_most(id - 1));
            let page: Vec<Tid> = candidates
                .take(COMPLETED_AT_ONCE)
                .map_while(Tid::from_u64)
                .collect();
            let known = known(self.link(), page.iter().copied()).await?;
            found.extend(page.iter().copied().filter(|tid| known.contains(tid)));
            most = page.last().map(|last| last.as_u64() - 1);
        }
        Ok(found)
    }

    /// The last task id up to `most`.
    async fn born_up_to(&self, most: u64) -> Result<Option<u64>> {
        let last = self.born_before(&stream_id(most), 1).await?;
        let last = last
            .first()
            .and_then(|(id, fields)| born(id, fields).last().copied());
        Ok(last.map(|last| last.as_u64().min(most)))
    }

    /// The last entries of `born` up to an id.
    async fn born_before(&self, id: &str, max: usize) -> Result<Entries> {
        let mut range = redis::cmd("XREVRANGE");
        range
            .arg(self.core.keys.named("created"))
            .arg(id)
            .arg("-")
            .arg("COUNT")
            .arg(max);
        self.link().read(&range).await
    }
}

/// Assembles the view of one task.
pub(super) fn view(task: &Snapshot) -> Result<TaskView> {
    let tid = task.tid;
    let stored = super::record::StoredSpec::parse(tid, &task.stored)?;
    let (record, done) = (&task.record, task.done.as_ref());
    let counters = done.map_or(record.counters, |done| done.counters);
    let active = Some(record).filter(|record| done.is_none() && record.is_active());
    let owner = done.map_or(record.owner, |done| done.owner);
    Ok(TaskView {
        tid,
        spec: stored.spec(tid)?,
        state: task.state(),
        attempt: counters.attempt,
        failures: counters.failures,
        losses: counters.losses,
        paused: done.is_none() && (record.location == TaskLocation::Paused || record.paused),
        dead: done.is_some_and(|done| done.dead),
        run_at: record.run_at.filter(|_| done.is_none()).map(at_nanos),
        parent: stored.parent,
        worker: owner.filter(|owner| *owner != tid),
        pid: active.and_then(|record| record.pid),
        // Progress has a key of its own: see `progress.rs`.
        progress: None,
        // A mark that there are some; `chain.rs` adds the number.
        chained: active.map_or(0, |record| u64::from(record.chained)),
        created_at: at_nanos(tid.as_i64()),
        claimed_at: active.and_then(|record| record.claimed_at).map(at_micros),
        finished_at: done.map(|done| at_micros(done.finished_at)),
        report: done.map(|done| done.report(tid)).transpose()?,
    })
}
