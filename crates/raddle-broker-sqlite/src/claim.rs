//! Claims.

use std::{collections::BTreeSet, time::Duration};

use raddle_model::{AttemptCounters, ExitStatus, TaskEventKind, TaskSpec, TaskState, Tid};
use rusqlite::{OptionalExtension, params};

use super::{
    complete::{TaskEnding, end_active, end_attempt},
    counts::Counter,
    queue_pause::paused_queues,
    reclaim::report,
    registry::worker_row_at,
    rollups,
    submit::refresh_parts,
    tx::{Partition, Tx, TxError, WaitingLocation, counters, find_active, tid_at},
};
use raddle_broker::{AttemptId, ClaimRequest, Error, LeasedTask};

/// A row of `ready` with its spec.
struct ClaimCandidate {
    partition_id: i64,
    rank: u8,
    tid: Tid,
    counters: AttemptCounters,
    spec: String,
}

/// The most delayed tasks that one claim makes ready. The next claim goes on.
const PROMOTED_AT_ONCE: u32 = 256;

/// Claims what the request asks for. If there is nothing, also returns when something becomes due.
pub(super) fn claim(
    tx: &mut Tx<'_>,
    request: &ClaimRequest,
) -> Result<(Vec<LeasedTask>, Option<Duration>), TxError> {
    // A worker with an expired lease gets nothing: its runners have given up, and other workers
    // reclaim its tasks.
    let owner = tx
        .db()
        .prepare_cached("SELECT ephemeral, tid, boot, alive_until FROM workers WHERE tid = ?1")?
        .query_row([request.owner.as_i64()], |row| {
            Ok((row.get(0)?, worker_row_at(row, 1)?))
        })
        .optional()?;
    let alive = owner.filter(|(_, entered)| tx.leases.get(*entered).until >= tx.machine);
    let Some((ephemeral, _)) = alive else {
        return Err(Error::NotFound(request.owner).into());
    };
    promote(tx)?;
    let paused = paused_queues(tx.db())?;
    let candidates = match request.only {
        Some(tid) => only(tx, tid, &paused)?,
        None => best(tx, request, &paused)?,
    };
    let claims = take(tx, request.owner, ephemeral, &candidates)?;
    let again_in = match (claims.is_empty(), candidates.is_empty()) {
        (true, true) => next_due(tx)?,
        // All candidates had expired or were unreadable: look again at once.
        (true, false) => Some(Duration::ZERO),
        _ => None,
    };
    Ok((claims, again_in))
}

/// Moves delayed tasks that are due to `ready`.
fn promote(tx: &mut Tx<'_>) -> rusqlite::Result<()> {
    let due: Vec<(Tid, AttemptCounters, i64)> = tx
        .db()
        .prepare_cached(
            "SELECT tid, attempt, failures, losses, partition_id FROM delayed JOIN tasks USING (tid)
             WHERE run_at <= ?1 ORDER BY run_at LIMIT ?2",
        )?
        .query_map(params![tx.now, PROMOTED_AT_ONCE], |row| {
            Ok((tid_at(row, 0)?, counters(row, 1)?, row.get(4)?))
        })?
        .collect::<rusqlite::Result<_>>()?;
    for (tid, counters, partition_id) in due {
        tx.dequeue(tid, partition_id, WaitingLocation::Delayed)?;
        tx.enqueue(tid, partition_id, counters, None)?;
    }
    Ok(())
}

fn next_due(tx: &Tx<'_>) -> rusqlite::Result<Option<Duration>> {
    let due: Option<i64> = tx
        .db()
        .prepare_cached("SELECT min(run_at) FROM delayed")?
        .query_row([], |row| row.get(0))?;
    Ok(due.map(|at| Duration::from_nanos(u64::try_from(at - tx.now).unwrap_or(0))))
}

fn candidate(row: &rusqlite::Row<'_>) -> rusqlite::Result<ClaimCandidate> {
    Ok(ClaimCandidate {
        partition_id: row.get(0)?,
        rank: row.get(1)?,
        tid: tid_at(row, 2)?,
        counters: counters(row, 3)?,
        spec: row.get(6)?,
    })
}

fn only(
    tx: &mut Tx<'_>,
    tid: Tid,
    paused: &BTreeSet<String>,
) -> rusqlite::Result<Vec<ClaimCandidate>> {
    let mut candidates: Vec<ClaimCandidate> = tx
        .db()
        .prepare_cached(
            "SELECT partition_id, rank, tid, attempt, failures, losses, spec FROM tasks JOIN ready USING (partition_id, rank, tid)
             WHERE tid = ?1",
        )?
        .query_map([tid.as_i64()], candidate)?
        .collect::<rusqlite::Result<_>>()?;
    if !paused.is_empty() {
        refresh_parts(tx)?;
        let partitions = &tx.cache.partitions;
        candidates.retain(|candidate| {
            let of = |partition: &&Partition| partition.id == candidate.partition_id;
            let partition = partitions.iter().find(of);
            partition.is_none_or(|partition| !paused.contains(&partition.queue))
        });
    }
    Ok(candidates)
}

/// The first tasks by priority and age over all partitions that the worker may claim from.
fn best(
    tx: &mut Tx<'_>,
    request: &ClaimRequest,
    paused: &BTreeSet<String>,
) -> rusqlite::Result<Vec<ClaimCandidate>> {
    refresh_parts(tx)?;
    let mut candidates = Vec::new();
    let mut query = tx.db().prepare_cached(
        "SELECT ready.partition_id, ready.rank, ready.tid, attempt, failures, losses, spec
         FROM ready CROSS JOIN tasks ON tasks.tid = ready.tid
         WHERE ready.partition_id = ?1 ORDER BY ready.rank, ready.tid LIMIT ?2",
    )?;
    for partition in &tx.cache.partitions {
        let is_served = request.queues.contains(&partition.queue)
            && partition.needs.is_subset(&request.caps)
            && !paused.contains(&partition.queue);
        if !is_served {
            continue;
        }
        for row in query.query_map(params![partition.id, request.max], candidate)? {
            candidates.push(row?);
        }
    }
    candidates.sort_unstable_by_key(|candidate| (candidate.rank, candidate.tid));
    candidates.truncate(request.max as usize);
    Ok(candidates)
}

/// Moves candidates from `ready` to `active`, one statement per run of neighbours.
fn take(
    tx: &mut Tx<'_>,
    owner: Tid,
    ephemeral: bool,
    candidates: &[ClaimCandidate],
) -> Result<Vec<LeasedTask>, TxError> {
    let mut claims = Vec::with_capacity(candidates.len());
    for run in candidates.chunk_by(|a, b| (a.partition_id, a.rank) == (b.partition_id, b.rank)) {
        // Candidates are the first of their partition, so there is no other task between the ends
        // of a run.
        let (first, last) = (&run[0], &run[run.len() - 1]);
        let key = params![
            first.partition_id,
            first.rank,
            first.tid.as_i64(),
            last.tid.as_i64()
        ];
        tx.db()
            .prepare_cached(
                "INSERT OR ROLLBACK INTO active (tid, owner, state, claimed_at, ephemeral, partition_id, ttl, has_unique_key, attempt, failures, losses)
                 SELECT tid, ?5, ?6, ?7, ?8, partition_id, ttl, has_unique_key, attempt + 1, failures, losses FROM ready
                 WHERE partition_id = ?1 AND rank = ?2 AND tid BETWEEN ?3 AND ?4",
            )?
            .execute(params![
                first.partition_id,
                first.rank,
                first.tid.as_i64(),
                last.tid.as_i64(),
                owner.as_i64(),
                TaskState::Spawning as u8,
                tx.now,
                ephemeral
            ])?;
        tx.db()
            .prepare_cached(
                "DELETE FROM ready WHERE partition_id = ?1 AND rank = ?2 AND tid BETWEEN ?3 AND ?4",
            )?
            .execute(key)?;
        let claimed = run.len() as i64;
        tx.count(first.partition_id, Counter::Ready, -claimed);
        tx.count(first.partition_id, Counter::Spawning, claimed);
        for ClaimCandidate {
            tid,
            counters,
            spec,
            ..
        } in run
        {
            let attempt_id = AttemptId {
                tid: *tid,
                attempt: counters.attempt + 1,
                owner,
            };
            let fencing_token = tx.event(
                *tid,
                TaskEventKind::Spawning,
                attempt_id.attempt,
                Some(owner),
                None,
            );
            match parse_spec(*tid, spec) {
                Ok(spec) if spec.has_expired(*tid, *counters, tx.now) => expire(tx, *tid)?,
                Ok(spec) => {
                    rollups::count_claim(tx, *tid, &spec, counters.attempt == 0);
                    claims.push(LeasedTask {
                        attempt_id,
                        spec,
                        fencing_token,
                    });
                }
                // An unreadable record must not block the tasks behind it.
                Err(error) => give_up(tx, *tid, &error)?,
            }
        }
    }
    Ok(claims)
}

/// Ends a task that has expired instead of claiming it.
fn expire(tx: &mut Tx<'_>, tid: Tid) -> Result<(), TxError> {
    let Some(active) = find_active(tx.db(), tid)? else {
        return Ok(());
    };
    let report = report(tx, ExitStatus::Expired);
    end_attempt(tx, &active, &report).map(drop)
}

fn give_up(tx: &mut Tx<'_>, tid: Tid, error: &Error) -> Result<(), TxError> {
    let Some(active) = find_active(tx.db(), tid)? else {
        return Ok(());
    };
    let exit = ExitStatus::SpawnFailed {
        message: error.to_string(),
    };
    let report = report(tx, exit);
    end_active(
        tx,
        &active,
        &TaskEnding {
            state: TaskState::Failed,
            dead: false,
            report: &report,
        },
    )
}

/// The spec of a stored task.
pub(super) fn spec_of(tx: &Tx<'_>, tid: Tid) -> Result<TaskSpec, TxError> {
    let text: String = tx
        .db()
        .prepare_cached("SELECT spec FROM tasks WHERE tid = ?1")?
        .query_row([tid.as_i64()], |row| row.get(0))?;
    parse_spec(tid, &text).map_err(TxError::Caller)
}

pub(super) fn parse_spec(tid: Tid, text: &str) -> Result<TaskSpec, Error> {
    serde_json::from_str(text).map_err(|e| Error::Record {
        tid,
        reason: e.to_string(),
    })
}
