//! Lists and views of tasks, and the implementation of [`Tasks`] by the files beside this one.

mod find;
mod summary;
mod waiting;

pub(super) use find::find_fitting;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use raddle_model::{
    AttemptReport, ControlMessage, ExitStatus, ResourceUsage, TaskSpec, TaskView, Tid,
};
use rusqlite::{Connection, OptionalExtension};

use super::{
    Sqlite, chain, claim, clock, complete, control, health,
    notify::Topic,
    output::{self, WritePosition},
    queue_pause, reclaim, submit, submit_and_claim,
    tx::{TxError, WaitingLocation, counters, find_active, find_waiting, state_at},
    writer::{Durability, Writer},
};
use raddle_broker::{
    AttemptId, AttemptUpdate, AttemptUpdateKind, ChainRequest, ClaimRequest, Completion,
    CompletionOutcome, ControlDelivery, DeliveryOutcome, EngineHealth, Error, LeasedTask, NewTask,
    OutputStream, Reclaimed, Release, Result, SubmitAndClaim, SubmitAndClaimOutcome, Submitted,
    Summary, SummaryDetail, TaskFilter, TaskPage, Tasks, WaitingRequest,
};

#[async_trait]
impl Tasks for Sqlite {
    async fn submit(&self, batch: Vec<NewTask>) -> Result<Vec<Submitted>> {
        let batch = batch
            .into_iter()
            .map(submit::prepare)
            .collect::<Result<Vec<_>>>()?;
        self.write(Durability::Power, move |tx| submit::submit(tx, batch))
            .await
    }

    async fn submit_and_claim(&self, request: SubmitAndClaim) -> Result<SubmitAndClaimOutcome> {
        let SubmitAndClaim {
            task,
            worker,
            lease,
        } = request;
        let task = submit::prepare(task)?;
        self.write(Durability::Power, move |tx| {
            submit_and_claim::submit_and_claim(tx, task, &worker, lease)
        })
        .await
    }

    async fn claim(&self, request: ClaimRequest) -> Result<Vec<LeasedTask>> {
        let mut wait = self.wait(Topic::Ready, request.wait);
        let request = Arc::new(request);
        loop {
            let (request, writer) = (Arc::clone(&request), self.writer().clone());
            let reply = self.writer().write_and_deliver(
                Durability::Process,
                move |tx| claim::claim(tx, &request),
                move |(claims, again_in)| (UndeliveredClaims { claims, writer }, again_in),
            );
            let (mut taken, again_in) = self.await_reply(reply).await?;
            let claims = std::mem::take(&mut taken.claims);
            if !claims.is_empty() || !wait.next(again_in).await {
                return Ok(claims);
            }
        }
    }

    async fn update_attempts(&self, batch: Vec<AttemptUpdate>) -> Result<()> {
        let mut rest = Vec::new();
        for update in batch {
            match update.kind {
                AttemptUpdateKind::Output(stream, bytes) => {
                    self.append(update.attempt_id, stream, bytes).await?
                }
                _ => rest.push(update),
            }
        }
        if rest.is_empty() {
            return Ok(());
        }
        self.write(Durability::Process, move |tx| {
            rest.iter()
                .try_for_each(|AttemptUpdate { attempt_id, kind }| match kind {
                    AttemptUpdateKind::Started(pid) => complete::started(tx, *attempt_id, *pid),
                    AttemptUpdateKind::Paused(paused) => complete::paused(tx, *attempt_id, *paused),
                    AttemptUpdateKind::Progress(progress) => {
                        complete::progress(tx, *attempt_id, progress)
                    }
                    AttemptUpdateKind::Output(..) => Ok(()),
                })
        })
        .await
    }

    async fn chain(&self, chain: ChainRequest) -> Result<u64> {
        let ChainRequest {
            attempt_id, offset, ..
        } = chain;
        let specs = chain.serialize_specs()?;
        let chained = self
            .write(Durability::Process, move |tx| {
                chain::chain(tx, attempt_id, &specs, offset)
            })
            .await?;
        chained.ok_or(Error::Superseded(attempt_id))
    }

    async fn complete(&self, batch: Vec<Completion>) -> Result<Vec<CompletionOutcome>> {
        let lost = self.complete_files(&batch).await?;
        self.write(Durability::Power, move |tx| {
            for (attempt_id, what) in &lost {
                complete::record_lost_output(tx, *attempt_id, what)?;
            }
            complete::complete(tx, &batch)
        })
        .await
    }

    async fn release(&self, batch: Vec<Release>) -> Result<Vec<CompletionOutcome>> {
        self.write(Durability::Process, move |tx| complete::release(tx, &batch))
            .await
    }

    async fn reclaim(&self) -> Result<Vec<Reclaimed>> {
        self.write(Durability::Process, reclaim::reclaim).await
    }

    async fn control(&self, tid: Tid, message: ControlMessage) -> Result<DeliveryOutcome> {
        self.write(Durability::Power, move |tx| {
            control::control(tx, tid, &message)
        })
        .await
    }

    async fn recv_commands(&self, owner: Tid, wait: Duration) -> Result<Vec<ControlDelivery>> {
        let mut wait = self.wait(Topic::Control, wait);
        loop {
            // Checked first: most calls find nothing, and must not cost a write transaction.
            let mut deliveries = Vec::new();
            if self.check_first(|db| Ok(control::any_pending(db)?)).await? {
                deliveries = self
                    .write(Durability::Process, move |tx| {
                        control::recv_commands(tx, owner)
                    })
                    .await?;
            }
            if !deliveries.is_empty() || !wait.next(None).await {
                return Ok(deliveries);
            }
        }
    }

    async fn resubmit(&self, tid: Tid, dead: bool) -> Result<Tid> {
        self.write(Durability::Power, move |tx| submit::resubmit(tx, tid, dead))
            .await
    }

    async fn find_tasks(&self, filter: TaskFilter) -> Result<TaskPage> {
        self.find(filter).await
    }

    async fn count_waiting(&self, request: WaitingRequest) -> Result<u64> {
        let mut wait = self.wait(Topic::Ready, request.wait);
        let request = Arc::new(request);
        loop {
            let request = Arc::clone(&request);
            let (waiting, again_in) = self.read(move |db| waiting::waiting(db, &request)).await?;
            if waiting > 0 || !wait.next(again_in).await {
                return Ok(waiting);
            }
        }
    }

    async fn set_queue_paused(&self, queue: String, paused: bool) -> Result<bool> {
        let queue = raddle_broker::engine::check_queue(queue)?;
        self.write(Durability::Power, move |tx| {
            queue_pause::set_paused(tx, &queue, paused)
        })
        .await
    }

    async fn summarize(&self, detail: SummaryDetail) -> Result<Summary> {
        self.count_all(detail).await
    }

    async fn delete(&self, tids: Vec<Tid>) -> Result<u64> {
        self.delete_records(tids).await
    }

    async fn purge(&self) -> Result<u64> {
        self.purge_expired().await
    }

    async fn health(&self) -> Result<EngineHealth> {
        let shared = Arc::clone(&self.shared);
        self.read(move |db| health::health(db, &shared)).await
    }
}

impl Sqlite {
    /// Appends the rest of output whose beginning is in a file, before the record that will point
    /// to it. Returns descriptions of what could not be stored: the end of a task must be recorded
    /// even if its output is lost.
    async fn complete_files(&self, batch: &[Completion]) -> Result<Vec<(AttemptId, String)>> {
        let mut lost = Vec::new();
        for completion in batch {
            for (stream, tail, total) in [
                (
                    OutputStream::Stdout,
                    &completion.stdout,
                    completion.report.stdout_bytes,
                ),
                (
                    OutputStream::Stderr,
                    &completion.stderr,
                    completion.report.stderr_bytes,
                ),
            ] {
                let before = total.saturating_sub(tail.len() as u64);
                if before == 0 {
                    continue;
                }
                let (attempt_id, tail) = (completion.attempt_id, tail.clone());
                let written = self.write_in_order(move |shared, db| {
                    output::write_current(
                        shared,
                        db,
                        attempt_id,
                        stream,
                        WritePosition::Offset(before),
                        &tail,
                    )
                });
                let what = match written.await {
                    Ok(None) => continue,
                    Ok(Some(written)) => {
                        let missing = written.missing;
                        written.sync(attempt_id.tid).await;
                        if missing == 0 {
                            continue;
                        }
                        format!("{missing} bytes of {stream} could not be kept")
                    }
                    Err(error) if error.is_retryable() => return Err(error),
                    Err(error) => format!("the end of {stream} could not be kept: {error}"),
                };
                tracing::error!(tid = %attempt_id.tid, what, "output was lost");
                lost.push((attempt_id, what));
            }
        }
        Ok(lost)
    }
}

/// Claims that were not delivered to the caller yet. Dropping them releases them.
struct UndeliveredClaims {
    claims: Vec<LeasedTask>,
    writer: Writer,
}

impl Drop for UndeliveredClaims {
    fn drop(&mut self) {
        if self.claims.is_empty() {
            return;
        }
        let back: Vec<Release> = self
            .claims
            .iter()
            .map(|claim| Release {
                attempt_id: claim.attempt_id,
                reason: "its claimer stopped waiting".into(),
            })
            .collect();
        self.writer
            .write_detached(move |tx| complete::release(tx, &back), drop);
    }
}

/// All stored data of one task.
pub(super) fn view(db: &Connection, tid: Tid) -> Result<Option<TaskView>, TxError> {
    let row = db
        .prepare_cached("SELECT spec, parent FROM tasks WHERE tid = ?1")?
        .query_row([tid.as_i64()], |row| {
            Ok((row.get::<_, String>(0)?, row.get::<_, Option<i64>>(1)?))
        })
        .optional()?;
    let Some((spec, parent)) = row else {
        return Ok(None);
    };
    let spec: TaskSpec = claim::parse_spec(tid, &spec)?;
    let mut task = TaskView::new(tid, spec, clock::timestamp(tid.as_i64()));
    task.parent = parent.and_then(|raw| Tid::from_u64(raw as u64));
    let counts = if let Some(active) = find_active(db, tid)? {
        task.state = active.state;
        task.worker = (active.owner != tid).then_some(active.owner);
        task.pid = active.pid;
        task.paused = active.paused;
        task.claimed_at = Some(clock::timestamp(active.claimed_at));
        let (progress, chained): (Option<String>, Option<String>) = db
            .prepare_cached("SELECT progress, chained FROM active WHERE tid = ?1")?
            .query_row([tid.as_i64()], |row| Ok((row.get(0)?, row.get(1)?)))?;
        task.progress = progress.and_then(|text| serde_json::from_str(&text).ok());
        task.chained = chain::parse(tid, chained.as_deref())?.tasks;
        active.counters
    } else if let Some(waiting) = find_waiting(db, tid)? {
        task.paused = waiting.location == WaitingLocation::Paused;
        task.run_at = waiting.run_at.map(clock::timestamp);
        waiting.counters
    } else {
        fill_done(db, &mut task)?
    };
    (task.attempt, task.failures, task.losses) = (counts.attempt, counts.failures, counts.losses);
    Ok(Some(task))
}

fn fill_done(
    db: &Connection,
    task: &mut TaskView,
) -> Result<raddle_model::AttemptCounters, TxError> {
    let tid = task.tid;
    let unreadable = |e: serde_json::Error| Error::Record {
        tid,
        reason: e.to_string(),
    };
    let mut query = db.prepare_cached(
        "SELECT attempt, failures, losses, state, dead_letter, owner, finished_at, exit, started_at, ended_at, peak_rss, user_us,
                system_us, stdout_bytes, stderr_bytes, value
         FROM finished WHERE tid = ?1",
    )?;
    let mut rows = query.query([tid.as_i64()])?;
    let row = rows.next()?.ok_or(Error::NotFound(tid))?;
    let count = |index| row.get::<_, i64>(index).map(|number| number as u64);
    let text = |index| row.get::<_, Option<String>>(index);
    task.state = state_at(row, 3)?;
    task.dead = row.get(4)?;
    task.worker = row
        .get::<_, Option<i64>>(5)?
        .and_then(|raw| Tid::from_u64(raw as u64));
    task.finished_at = Some(clock::timestamp(row.get(6)?));
    task.report = Some(AttemptReport {
        exit: match text(7)? {
            Some(exit) => serde_json::from_str(&exit).map_err(unreadable)?,
            None => ExitStatus::Code { code: 0 },
        },
        started_at: row.get::<_, Option<i64>>(8)?.map(clock::timestamp),
        ended_at: clock::timestamp(row.get(9)?),
        usage: ResourceUsage {
            peak_rss_bytes: count(10)?,
            user_us: count(11)?,
            system_us: count(12)?,
        },
        stdout_bytes: count(13)?,
        stderr_bytes: count(14)?,
        value: text(15)?
            .map(|value| serde_json::from_str(&value))
            .transpose()
            .map_err(unreadable)?,
    });
    Ok(counters(row, 0)?)
}
