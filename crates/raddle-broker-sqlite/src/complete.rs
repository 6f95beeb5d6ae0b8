//! Attempts: started, paused, completed, released; and the end of tasks.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::LazyLock,
    time::Duration,
};

use raddle_model::{
    AttemptCounters, AttemptReport, NextStep, Progress, TaskEventKind, TaskState, Tid, next_step,
    time,
};
use rusqlite::{Connection, OptionalExtension, params};

use super::{
    bulk_insert::BulkStatement,
    chain,
    claim::spec_of,
    clock, control,
    counts::{Counter, SERVICES},
    purge,
    rollups::count_end,
    tx::{ACTIVE_COLUMNS, ActiveTask, Tx, TxError, WaitingTask, active_at, find_attempt},
};
use raddle_broker::{
    AttemptId, Completion, CompletionOutcome, OutputStream, Release,
    rollups::{self, OutcomeEvent},
};

/// Records that the target of an attempt has started.
pub(super) fn started(
    tx: &mut Tx<'_>,
    attempt_id: AttemptId,
    pid: Option<u32>,
) -> Result<(), TxError> {
    let partition_id: Option<i64> = tx
        .db()
        .prepare_cached(
            "UPDATE active SET state = ?3, pid = ?4 WHERE tid = ?1 AND attempt = ?2 AND owner = ?6 AND state = ?5
             RETURNING partition_id",
        )?
        .query_row(
            params![
                attempt_id.tid.as_i64(),
                attempt_id.attempt,
                TaskState::Running as u8,
                pid,
                TaskState::Spawning as u8,
                attempt_id.owner.as_i64()
            ],
            |row| row.get(0),
        )
        .optional()?;
    if let Some(partition_id) = partition_id {
        tx.count(partition_id, Counter::Spawning, -1);
        tx.count(partition_id, Counter::Running, 1);
        tx.event(
            attempt_id.tid,
            TaskEventKind::Running,
            attempt_id.attempt,
            Some(attempt_id.owner),
            None,
        );
    }
    Ok(())
}

/// Records that a running attempt is paused, or continues.
pub(super) fn paused(tx: &mut Tx<'_>, attempt_id: AttemptId, paused: bool) -> Result<(), TxError> {
    let changed = tx
        .db()
        .prepare_cached(
            "UPDATE active SET paused = ?3 WHERE tid = ?1 AND attempt = ?2 AND owner = ?4 AND paused != ?3",
        )?
        .execute(params![attempt_id.tid.as_i64(), attempt_id.attempt, paused, attempt_id.owner.as_i64()])?;
    if changed > 0 {
        let kind = if paused {
            TaskEventKind::Paused
        } else {
            TaskEventKind::Resumed
        };
        tx.event(attempt_id.tid, kind, attempt_id.attempt, None, None);
    }
    Ok(())
}

/// Stores the progress of a running attempt.
pub(super) fn progress(
    tx: &mut Tx<'_>,
    attempt_id: AttemptId,
    progress: &Progress,
) -> Result<(), TxError> {
    let text = serde_json::to_string(progress).expect("a number and a text serialize");
    tx.db()
        .prepare_cached(
            "UPDATE active SET progress = ?3 WHERE tid = ?1 AND attempt = ?2 AND owner = ?4",
        )?
        .execute(params![
            attempt_id.tid.as_i64(),
            attempt_id.attempt,
            text,
            attempt_id.owner.as_i64()
        ])?;
    Ok(())
}

/// Completes attempts. Final records are written together at the end, chaining by the tasks that
/// they chained.
pub(super) fn complete(
    tx: &mut Tx<'_>,
    batch: &[Completion],
) -> Result<Vec<CompletionOutcome>, TxError> {
    let tids: Vec<Tid> = batch
        .iter()
        .map(|completion| completion.attempt_id.tid)
        .collect();
    let mut actives = find_actives(tx.db(), &tids)?;
    let mut records = Vec::with_capacity(batch.len());
    let mut chaining = Vec::new();
    let mut outcomes = Vec::with_capacity(batch.len());
    for Completion {
        attempt_id,
        report,
        stdout,
        stderr,
    } in batch
    {
        let Some(active) = take_current(&mut actives, *attempt_id) else {
            refuse(tx, *attempt_id)?;
            outcomes.push(CompletionOutcome::Stale);
            continue;
        };
        store_output(
            tx,
            *attempt_id,
            OutputStream::Stdout,
            stdout,
            report.stdout_bytes,
        )?;
        store_output(
            tx,
            *attempt_id,
            OutputStream::Stderr,
            stderr,
            report.stderr_bytes,
        )?;
        let has_run = report.started_at.is_some() || report.exit.is_success();
        if active.state == TaskState::Spawning && has_run {
            tx.event(
                attempt_id.tid,
                TaskEventKind::Running,
                attempt_id.attempt,
                Some(active.owner),
                None,
            );
        }
        outcomes.push(match next_step_of(tx, &active, report)? {
            NextStep::Finish {
                state,
                dead,
                counters,
            } => {
                if active.chained && report.exit.is_success() {
                    chaining.push(attempt_id.tid);
                } else if active.chained {
                    chain::discard(tx, attempt_id.tid)?;
                }
                tx.count(active.partition_id, Counter::for_state(active.state), -1);
                let active = ActiveTask { counters, ..active };
                records.push(FinalRecord::of_active(
                    tx,
                    &active,
                    &TaskEnding {
                        state,
                        dead,
                        report,
                    },
                ));
                CompletionOutcome::Finished(state)
            }
            NextStep::Retry { pause, counters } => again(tx, &active, report, pause, counters)?,
        });
    }
    let tids: Vec<Tid> = records.iter().map(|record| record.tid).collect();
    remove_actives(tx, &tids)?;
    write_records(tx, &records)?;
    chain::follow_up(tx, &chaining)?;
    Ok(outcomes)
}

/// Records that a part of an attempt's output is lost.
pub(super) fn record_lost_output(
    tx: &mut Tx<'_>,
    attempt_id: AttemptId,
    what: &str,
) -> Result<(), TxError> {
    if find_attempt(tx.db(), attempt_id)?.is_some() {
        tx.event(
            attempt_id.tid,
            TaskEventKind::OutputLost,
            attempt_id.attempt,
            None,
            Some(what),
        );
    }
    Ok(())
}

/// Removes and returns the attempt if it is the current one. A second completion in the same batch
/// finds none.
fn take_current(
    actives: &mut HashMap<Tid, ActiveTask>,
    attempt_id: AttemptId,
) -> Option<ActiveTask> {
    match actives.entry(attempt_id.tid) {
        Entry::Occupied(entry) if entry.get().is(attempt_id) => Some(entry.remove()),
        _ => None,
    }
}

/// Stores the output of an attempt in a row if `tail` is all of it. Otherwise the beginning is in a
/// file, to which the end was appended before.
fn store_output(
    tx: &Tx<'_>,
    attempt_id: AttemptId,
    stream: OutputStream,
    tail: &[u8],
    total: u64,
) -> rusqlite::Result<()> {
    if !tail.is_empty() && total <= tail.len() as u64 {
        tx.db()
            .prepare_cached("INSERT OR REPLACE INTO outputs (tid, attempt, stream, bytes) VALUES (?1, ?2, ?3, ?4)")?
            .execute(params![attempt_id.tid.as_i64(), attempt_id.attempt, stream as u8, tail])?;
    }
    Ok(())
}

pub(super) fn release(
    tx: &mut Tx<'_>,
    batch: &[Release],
) -> Result<Vec<CompletionOutcome>, TxError> {
    batch
        .iter()
        .map(|release| release_one(tx, release))
        .collect()
}

fn release_one(tx: &mut Tx<'_>, release: &Release) -> Result<CompletionOutcome, TxError> {
    let attempt_id = release.attempt_id;
    let Some(active) = find_attempt(tx.db(), attempt_id)? else {
        refuse(tx, attempt_id)?;
        return Ok(CompletionOutcome::Stale);
    };
    give_back(tx, &active, TaskEventKind::Released, &release.reason)
}

/// Counts and logs a write of a stale attempt.
pub(super) fn refuse(tx: &mut Tx<'_>, attempt_id: AttemptId) -> rusqlite::Result<()> {
    tx.increment_counter("stale_writes")?;
    // The record may have been purged; the log must not name tasks without a record.
    if tx
        .db()
        .prepare_cached("SELECT 1 FROM tasks WHERE tid = ?1")?
        .exists([attempt_id.tid.as_i64()])?
    {
        tx.event(
            attempt_id.tid,
            TaskEventKind::StaleWrite,
            attempt_id.attempt,
            None,
            None,
        );
    }
    Ok(())
}

/// Ends one attempt and applies the decision that follows.
pub(super) fn end_attempt(
    tx: &mut Tx<'_>,
    active: &ActiveTask,
    report: &AttemptReport,
) -> Result<CompletionOutcome, TxError> {
    match next_step_of(tx, active, report)? {
        NextStep::Finish {
            state,
            dead,
            counters,
        } => {
            end_active(
                tx,
                &ActiveTask {
                    counters,
                    ..*active
                },
                &TaskEnding {
                    state,
                    dead,
                    report,
                },
            )?;
            Ok(CompletionOutcome::Finished(state))
        }
        NextStep::Retry { pause, counters } => again(tx, active, report, pause, counters),
    }
}

/// Calls [`next_step::decide_next`]. Success needs no decision, and so the spec is not read.
fn next_step_of(
    tx: &Tx<'_>,
    active: &ActiveTask,
    report: &AttemptReport,
) -> Result<NextStep, TxError> {
    if report.exit.is_success() {
        return Ok(NextStep::Finish {
            state: TaskState::Completed,
            dead: false,
            counters: active.counters,
        });
    }
    match spec_of(tx, active.tid) {
        Ok(spec) => Ok(next_step::decide_next(
            &spec,
            active.tid,
            active.counters,
            &report.exit,
        )),
        // A task with an unreadable spec cannot be retried, and must not block the rest of the
        // batch.
        Err(TxError::Caller(_)) => Ok(NextStep::Finish {
            state: TaskState::Failed,
            dead: false,
            counters: active.counters,
        }),
        Err(fail) => Err(fail),
    }
}

/// Makes a task wait for another attempt.
fn again(
    tx: &mut Tx<'_>,
    active: &ActiveTask,
    report: &AttemptReport,
    pause: Duration,
    counters: AttemptCounters,
) -> Result<CompletionOutcome, TxError> {
    remove_claim(tx, active)?;
    count_end(tx, active.tid, OutcomeEvent::Retried)?;
    let kind = next_step::event_before_another(&report.exit);
    tx.event(
        active.tid,
        kind,
        counters.attempt,
        Some(active.owner),
        Some(&report.exit.to_string()),
    );
    requeue(
        tx,
        &ActiveTask {
            counters,
            ..*active
        },
        Some(time::nanos_after(tx.now, pause)),
    )
}

/// Returns a task to its queue as if it had not been claimed.
pub(super) fn give_back(
    tx: &mut Tx<'_>,
    active: &ActiveTask,
    kind: TaskEventKind,
    reason: &str,
) -> Result<CompletionOutcome, TxError> {
    remove_claim(tx, active)?;
    tx.event(
        active.tid,
        kind,
        active.counters.attempt,
        Some(active.owner),
        Some(reason),
    );
    requeue(tx, active, None)
}

/// Makes a task wait for its next attempt, paused if the last attempt was paused and not resumed.
fn requeue(
    tx: &mut Tx<'_>,
    last: &ActiveTask,
    run_at: Option<i64>,
) -> Result<CompletionOutcome, TxError> {
    if last.paused {
        tx.hold(last.tid, last.partition_id, last.counters, run_at)?;
    } else {
        tx.enqueue(last.tid, last.partition_id, last.counters, run_at)?;
    }
    // Control messages that the attempt did not act on apply to the task.
    if let Some(state) = control::apply_pending(tx, last.tid, last.pending_command)? {
        return Ok(CompletionOutcome::Finished(state));
    }
    Ok(CompletionOutcome::Retry(clock::timestamp(
        run_at.unwrap_or(tx.now),
    )))
}

/// Removes a task from the dead-letter queue.
pub(super) fn remove_dead_letter(tx: &mut Tx<'_>, tid: Tid) -> rusqlite::Result<()> {
    let partition_id: Option<i64> = tx
        .db()
        .prepare_cached(
            "UPDATE finished SET dead_letter = 0 WHERE tid = ?1 AND dead_letter = 1
             RETURNING (SELECT partition_id FROM tasks WHERE tid = ?1)",
        )?
        .query_row([tid.as_i64()], |row| row.get(0))
        .optional()?;
    if let Some(partition_id) = partition_id {
        tx.count(partition_id, Counter::Dead, -1);
    }
    Ok(())
}

/// The end of a task.
#[derive(Clone, Copy)]
pub(super) struct TaskEnding<'a> {
    pub(super) state: TaskState,
    pub(super) dead: bool,
    pub(super) report: &'a AttemptReport,
}

/// Ends a claimed task.
pub(super) fn end_active(
    tx: &mut Tx<'_>,
    active: &ActiveTask,
    ending: &TaskEnding<'_>,
) -> Result<(), TxError> {
    remove_claim(tx, active)?;
    let record = FinalRecord::of_active(tx, active, ending);
    write_records(tx, &[record])
}

/// Ends a waiting task.
pub(super) fn end_waiting(
    tx: &mut Tx<'_>,
    tid: Tid,
    waiting: WaitingTask,
    ending: &TaskEnding<'_>,
) -> Result<(), TxError> {
    tx.dequeue(tid, waiting.partition_id, waiting.location)?;
    let (ttl, has_unique_key): (i64, bool) = tx
        .db()
        .prepare_cached("SELECT ttl, has_unique_key FROM tasks WHERE tid = ?1")?
        .query_row([tid.as_i64()], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let expires_at = tx.now.saturating_add(ttl);
    let record = FinalRecord {
        tid,
        partition_id: waiting.partition_id,
        ending: *ending,
        owner: None,
        expires_at,
        counters: waiting.counters,
        has_unique_key,
        ephemeral: false,
    };
    write_records(tx, &[record])
}

/// A row of `finished`.
struct FinalRecord<'a> {
    tid: Tid,
    partition_id: i64,
    ending: TaskEnding<'a>,
    owner: Option<Tid>,
    expires_at: i64,
    counters: AttemptCounters,
    has_unique_key: bool,
    ephemeral: bool,
}

impl<'a> FinalRecord<'a> {
    fn of_active(tx: &Tx<'_>, active: &ActiveTask, ending: &TaskEnding<'a>) -> Self {
        let ActiveTask {
            tid,
            partition_id,
            counters,
            has_unique_key,
            ephemeral,
            ..
        } = *active;
        // The task of a worker itself has no other owner.
        let owner = Some(active.owner).filter(|owner| *owner != tid);
        let expires_at = tx.now.saturating_add(active.ttl);
        Self {
            tid,
            partition_id,
            ending: *ending,
            owner,
            expires_at,
            counters,
            has_unique_key,
            ephemeral,
        }
    }
}

/// Writes final records. The caller has removed the tasks from their tables.
fn write_records(tx: &mut Tx<'_>, records: &[FinalRecord<'_>]) -> Result<(), TxError> {
    let now = tx.now;
    INSERT_DONE.write(tx.db(), records, |row, record| {
        let AttemptReport {
            exit,
            started_at,
            ended_at,
            usage,
            stdout_bytes,
            stderr_bytes,
            value,
        } = record.ending.report;
        row.bind(record.tid.as_i64())?;
        row.bind(record.ending.state as u8)?;
        row.bind(record.ending.dead)?;
        row.bind(record.owner.map(Tid::as_i64))?;
        row.bind(now)?;
        row.bind(record.expires_at)?;
        row.bind(record.counters.attempt)?;
        row.bind(record.counters.failures)?;
        row.bind(record.counters.losses)?;
        // NULL stands for success, the most common exit.
        row.bind((!exit.is_success()).then(|| json(exit)))?;
        row.bind(started_at.map(time::unix_nanos))?;
        row.bind(time::unix_nanos(*ended_at))?;
        row.bind(usage.peak_rss_bytes as i64)?;
        row.bind(usage.user_us as i64)?;
        row.bind(usage.system_us as i64)?;
        row.bind(*stdout_bytes as i64)?;
        row.bind(*stderr_bytes as i64)?;
        row.bind(value.as_ref().map(json))
    })?;
    if let Some(soonest) = records.iter().map(|record| record.expires_at).min() {
        purge::lower_next_expiry(tx, soonest)?;
    }
    for FinalRecord {
        tid,
        partition_id,
        ending,
        owner,
        counters,
        has_unique_key,
        ephemeral,
        ..
    } in records
    {
        if *has_unique_key {
            tx.db()
                .prepare_cached("DELETE FROM unique_keys WHERE tid = ?1")?
                .execute([tid.as_i64()])?;
        }
        if let Some(owner) = owner.filter(|_| *ephemeral) {
            tx.remove_worker(owner)?;
        }
        tx.delete_control_messages(*tid)?;
        tx.count(*partition_id, Counter::for_state(ending.state), 1);
        tx.count(*partition_id, Counter::Dead, ending.dead.into());
        if *partition_id != SERVICES {
            let ran = rollups::run_time(ending.report);
            count_end(tx, *tid, OutcomeEvent::Finished(ending.state, ran))?;
        }
        let exit = &ending.report.exit;
        let detail = (!exit.is_success()).then(|| exit.to_string());
        tx.event(
            *tid,
            ending.state.into(),
            counters.attempt,
            *owner,
            detail.as_deref(),
        );
    }
    Ok(())
}

static INSERT_DONE: LazyLock<BulkStatement> = LazyLock::new(|| {
    let columns =
        "tid, state, dead_letter, owner, finished_at, expires_at, attempt, failures, losses, exit, started_at, ended_at,
                   peak_rss, user_us, system_us, stdout_bytes, stderr_bytes, value";
    BulkStatement::insert(&format!("finished ({columns})"), 18)
});
static DELETE_ACTIVE: LazyLock<BulkStatement> =
    LazyLock::new(|| BulkStatement::keys("DELETE FROM active WHERE tid IN"));
static FIND_ACTIVE: LazyLock<BulkStatement> = LazyLock::new(|| {
    BulkStatement::keys(&format!("SELECT {ACTIVE_COLUMNS} FROM active WHERE tid IN"))
});

fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).expect("it has only string keys")
}

/// Removes the claim of a task whose attempt did not succeed, and what the attempt chained.
fn remove_claim(tx: &mut Tx<'_>, active: &ActiveTask) -> rusqlite::Result<()> {
    tx.count(active.partition_id, Counter::for_state(active.state), -1);
    if active.chained {
        chain::discard(tx, active.tid)?;
    }
    remove_actives(tx, &[active.tid])
}

fn remove_actives(tx: &Tx<'_>, tids: &[Tid]) -> rusqlite::Result<()> {
    DELETE_ACTIVE.write(tx.db(), tids, |row, tid| row.bind(tid.as_i64()))
}

/// The current attempts of those of these tasks that are claimed.
fn find_actives(db: &Connection, tids: &[Tid]) -> rusqlite::Result<HashMap<Tid, ActiveTask>> {
    let mut found = HashMap::with_capacity(tids.len());
    FIND_ACTIVE.find(db, tids, |row| {
        let active = active_at(row)?;
        found.insert(active.tid, active);
        Ok(())
    })?;
    Ok(found)
}
