//! Tasks out.

use std::time::Duration;

use raddle_core::{EventKind, Exit, Spec, State, Tally, Target, Tid};
use rusqlite::{OptionalExtension, params};

use super::{
    finish::{Ending, end_task},
    reclaim::report,
    submit::refresh_parts,
    tx::{Fail, Place, Tx, find_waiting, tally, tid_at},
};
use crate::{Claim, ClaimRequest, Error, Fence};

/// A task as it stands in `ready`.
struct Candidate {
    part: i64,
    rank: u8,
    tid: Tid,
    tally: Tally,
}

/// How many overdue tasks one claim moves at most: the rest follows with the next.
const PROMOTED_AT_ONCE: u32 = 256;

/// Takes what the request asks for, and says when more will be due if there was nothing.
pub(super) fn claim(tx: &mut Tx<'_>, request: &ClaimRequest) -> Result<(Vec<Claim>, Option<Duration>), Fail> {
    let registered =
        tx.db().prepare_cached("SELECT 1 FROM workers WHERE tid = ?1")?.exists([request.owner.as_i64()])?;
    if !registered {
        return Err(Error::NotFound(request.owner).into());
    }
    promote(tx)?;
    let candidates = match request.only {
        Some(tid) => only(tx, tid)?,
        None => best(tx, request)?,
    };
    let mut claims = Vec::with_capacity(candidates.len());
    for candidate in candidates {
        claims.extend(take(tx, request.owner, candidate)?);
    }
    let again_in = if claims.is_empty() { next_due(tx)? } else { None };
    Ok((claims, again_in))
}

/// Moves delayed tasks whose time has come to where they are claimed.
fn promote(tx: &mut Tx<'_>) -> rusqlite::Result<()> {
    let due: Vec<(Tid, Tally)> = tx
        .db()
        .prepare_cached(
            "SELECT tid, attempt, failures, losses FROM delayed WHERE run_at <= ?1 ORDER BY run_at LIMIT ?2",
        )?
        .query_map(params![tx.now, PROMOTED_AT_ONCE], |row| Ok((tid_at(row, 0)?, tally(row, 1)?)))?
        .collect::<rusqlite::Result<_>>()?;
    for (tid, tally) in due {
        tx.dequeue(tid, Place::Delayed)?;
        tx.enqueue(tid, tally, None)?;
    }
    Ok(())
}

fn next_due(tx: &Tx<'_>) -> rusqlite::Result<Option<Duration>> {
    let due: Option<i64> =
        tx.db().prepare_cached("SELECT min(run_at) FROM delayed")?.query_row([], |row| row.get(0))?;
    Ok(due.map(|at| Duration::from_nanos(u64::try_from(at - tx.now).unwrap_or(0))))
}

fn only(tx: &Tx<'_>, tid: Tid) -> rusqlite::Result<Vec<Candidate>> {
    let Some(waiting) = find_waiting(tx.db(), tid)?.filter(|waiting| waiting.place == Place::Ready) else {
        return Ok(Vec::new());
    };
    let candidate = tx
        .db()
        .prepare_cached("SELECT part, rank FROM tasks WHERE tid = ?1")?
        .query_row([tid.as_i64()], |row| {
            Ok(Candidate { part: row.get(0)?, rank: row.get(1)?, tid, tally: waiting.tally })
        })
        .optional()?;
    Ok(candidate.into_iter().collect())
}

/// The most urgent, then oldest tasks over all partitions that the worker may take from.
fn best(tx: &mut Tx<'_>, request: &ClaimRequest) -> rusqlite::Result<Vec<Candidate>> {
    refresh_parts(tx)?;
    let mut candidates = Vec::new();
    let mut query = tx.db().prepare_cached(
        "SELECT rank, tid, attempt, failures, losses FROM ready WHERE part = ?1 ORDER BY rank, tid LIMIT ?2",
    )?;
    for part in &tx.cache.parts {
        if !request.queues.contains(&part.queue) || !part.needs.is_subset(&request.caps) {
            continue;
        }
        let rows = query.query_map(params![part.id, request.max], |row| {
            Ok(Candidate { part: part.id, rank: row.get(0)?, tid: tid_at(row, 1)?, tally: tally(row, 2)? })
        })?;
        for row in rows {
            candidates.push(row?);
        }
    }
    candidates.sort_unstable_by_key(|candidate| (candidate.rank, candidate.tid));
    candidates.truncate(request.max as usize);
    Ok(candidates)
}

fn take(tx: &mut Tx<'_>, owner: Tid, candidate: Candidate) -> Result<Option<Claim>, Fail> {
    let Candidate { part, rank, tid, tally } = candidate;
    let attempt = tally.attempt + 1;
    let spec = match spec_of(tx, tid) {
        Ok(spec) => spec,
        // A record that nobody can read must not stand in the way of those behind it.
        Err(Fail::Caller(error)) => {
            give_up(tx, tid, tally, &error)?;
            return Ok(None);
        }
        Err(fail) => return Err(fail),
    };
    tx.db().prepare_cached("DELETE FROM ready WHERE part = ?1 AND rank = ?2 AND tid = ?3")?.execute(params![
        part,
        rank,
        tid.as_i64()
    ])?;
    tx.db()
        .prepare_cached(
            "INSERT INTO active (tid, owner, state, claimed_at, attempt, failures, losses)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        )?
        .execute(params![
            tid.as_i64(),
            owner.as_i64(),
            State::Spawning as u8,
            tx.now,
            attempt,
            tally.failures,
            tally.losses
        ])?;
    tx.event(tid, EventKind::Spawning, attempt, Some(owner), None)?;
    Ok(Some(Claim { fence: Fence { tid, attempt }, spec }))
}

fn give_up(tx: &mut Tx<'_>, tid: Tid, tally: Tally, error: &Error) -> Result<(), Fail> {
    tx.dequeue(tid, Place::Ready)?;
    let detail = error.to_string();
    let report = report(tx, Exit::SpawnFailed { message: detail.clone() });
    let ending =
        Ending { state: State::Failed, dead: false, owner: None, tally, report: &report, detail: Some(detail) };
    end_task(tx, tid, &Spec::new(Target::Service("unreadable".into())), &ending)
}

/// The spec of a stored task.
pub(super) fn spec_of(tx: &Tx<'_>, tid: Tid) -> Result<Spec, Fail> {
    let text: String =
        tx.db().prepare_cached("SELECT spec FROM tasks WHERE tid = ?1")?.query_row([tid.as_i64()], |row| row.get(0))?;
    parse_spec(tid, &text).map_err(Fail::Caller)
}

pub(super) fn parse_spec(tid: Tid, text: &str) -> Result<Spec, Error> {
    serde_json::from_str(text).map_err(|e| Error::Record { tid, reason: e.to_string() })
}
