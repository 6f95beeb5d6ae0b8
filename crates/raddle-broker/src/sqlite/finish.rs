//! The end of an attempt: finished, or given back.

use raddle_core::{EventKind, Exit, Next, Report, State, Tally, Tid, settle};
use rusqlite::params;

use super::{
    claim::spec_of,
    clock, control,
    tx::{Active, Fail, Tx, Waiting, find_active},
};
use crate::{Fence, Finish, Release, Started, Stream, Verdict};

/// Notes that targets have begun.
pub(super) fn started(tx: &mut Tx<'_>, batch: &[Started]) -> Result<(), Fail> {
    for Started { fence, pid } in batch {
        let changed = tx
            .db()
            .prepare_cached(
                "UPDATE active SET state = ?3, pid = ?4 WHERE tid = ?1 AND attempt = ?2 AND state = ?5 RETURNING owner",
            )?
            .query_map(
                params![fence.tid.as_i64(), fence.attempt, State::Running as u8, pid, State::Spawning as u8],
                |row| super::tx::tid_at(row, 0),
            )?
            .next()
            .transpose()?;
        if let Some(owner) = changed {
            tx.event(fence.tid, EventKind::Running, fence.attempt, Some(owner), None);
        }
    }
    Ok(())
}

/// Notes that a running attempt stands still, or goes on.
pub(super) fn paused(tx: &mut Tx<'_>, fence: Fence, paused: bool) -> Result<(), Fail> {
    let changed = tx
        .db()
        .prepare_cached("UPDATE active SET paused = ?3 WHERE tid = ?1 AND attempt = ?2 AND paused != ?3")?
        .execute(params![fence.tid.as_i64(), fence.attempt, paused])?;
    if changed > 0 {
        let kind = if paused { EventKind::Paused } else { EventKind::Resumed };
        tx.event(fence.tid, kind, fence.attempt, None, None);
    }
    Ok(())
}

pub(super) fn finish(tx: &mut Tx<'_>, batch: &[Finish]) -> Result<Vec<Verdict>, Fail> {
    batch.iter().map(|finish| finish_one(tx, finish)).collect()
}

pub(super) fn release(tx: &mut Tx<'_>, batch: &[Release]) -> Result<Vec<Verdict>, Fail> {
    batch.iter().map(|release| release_one(tx, release)).collect()
}

fn finish_one(tx: &mut Tx<'_>, finish: &Finish) -> Result<Verdict, Fail> {
    let Finish { fence, report, stdout, stderr } = finish;
    let Some(active) = latest(tx, *fence)? else {
        return Ok(Verdict::Stale);
    };
    for (stream, tail, total) in
        [(Stream::Stdout, stdout, report.stdout_bytes), (Stream::Stderr, stderr, report.stderr_bytes)]
    {
        // More than the tail means that the beginning is in a file, and the tail was added to it before this.
        if !tail.is_empty() && total <= tail.len() as u64 {
            tx.db()
                .prepare_cached("INSERT OR REPLACE INTO outputs (tid, attempt, stream, bytes) VALUES (?1, ?2, ?3, ?4)")?
                .execute(params![fence.tid.as_i64(), fence.attempt, stream as u8, tail])?;
        }
    }
    let has_run = report.started_at.is_some() || report.exit.is_success();
    if active.state == State::Spawning && has_run {
        tx.event(fence.tid, EventKind::Running, fence.attempt, Some(active.owner), None);
    }
    end_attempt(tx, fence.tid, &active, report)
}

fn release_one(tx: &mut Tx<'_>, release: &Release) -> Result<Verdict, Fail> {
    let fence = release.fence;
    let Some(active) = latest(tx, fence)? else {
        return Ok(Verdict::Stale);
    };
    give_back(tx, fence.tid, &active, EventKind::Released, &release.reason)
}

/// The attempt as it stands, if it is still the latest; a stale write is counted and logged.
fn latest(tx: &mut Tx<'_>, fence: Fence) -> Result<Option<Active>, Fail> {
    let active = find_active(tx.db(), fence.tid)?.filter(|active| active.tally.attempt == fence.attempt);
    if active.is_none() {
        tx.count("stale_writes")?;
        // The record may have been purged meanwhile, and the log holds nothing of tasks that are not there.
        if tx.db().prepare_cached("SELECT 1 FROM tasks WHERE tid = ?1")?.exists([fence.tid.as_i64()])? {
            tx.event(fence.tid, EventKind::StaleWrite, fence.attempt, None, None);
        }
    }
    Ok(active)
}

/// Ends an attempt and does what [`settle`] says follows from it.
pub(super) fn end_attempt(tx: &mut Tx<'_>, tid: Tid, active: &Active, report: &Report) -> Result<Verdict, Fail> {
    let next = match report.exit {
        // Success leaves nothing to decide, and so no reason to read the spec.
        Exit::Code { code: 0 } => Next::Done { state: State::Completed, dead: false, tally: active.tally },
        _ => settle(&spec_of(tx, tid)?, tid, active.tally, &report.exit),
    };
    match next {
        Next::Done { state, dead, tally } => {
            end_active(tx, tid, &Active { tally, ..*active }, &Ending { state, dead, report })?;
            Ok(Verdict::Done(state))
        }
        Next::Again { pause, tally } => {
            remove_active(tx, tid)?;
            let kind = match report.exit {
                Exit::Lost { .. } => EventKind::Reclaimed,
                Exit::Cancelled => EventKind::Released,
                _ => EventKind::Retrying,
            };
            tx.event(tid, kind, tally.attempt, Some(active.owner), Some(&report.exit.to_string()));
            let run_at = tx.now.saturating_add(i64::try_from(pause.as_nanos()).unwrap_or(i64::MAX));
            wait_again(tx, tid, tally, Some(run_at))
        }
    }
}

/// Puts a task back as if it had not been claimed.
pub(super) fn give_back(
    tx: &mut Tx<'_>,
    tid: Tid,
    active: &Active,
    kind: EventKind,
    reason: &str,
) -> Result<Verdict, Fail> {
    remove_active(tx, tid)?;
    tx.event(tid, kind, active.tally.attempt, Some(active.owner), Some(reason));
    wait_again(tx, tid, active.tally, None)
}

fn wait_again(tx: &mut Tx<'_>, tid: Tid, tally: Tally, run_at: Option<i64>) -> Result<Verdict, Fail> {
    tx.enqueue(tid, tally, run_at)?;
    // Words that came for the attempt and were not obeyed in time hold for the task.
    if let Some(state) = control::apply_pending(tx, tid)? {
        return Ok(Verdict::Done(state));
    }
    Ok(Verdict::Again(clock::timestamp(run_at.unwrap_or(tx.now))))
}

/// How a task comes to its end.
pub(super) struct Ending<'a> {
    pub(super) state: State,
    pub(super) dead: bool,
    pub(super) report: &'a Report,
}

/// What the record of a finished task takes over from before.
struct Past {
    owner: Option<Tid>,
    tally: Tally,
    ttl: i64,
    keyed: bool,
}

/// Ends a task that a worker has.
pub(super) fn end_active(tx: &mut Tx<'_>, tid: Tid, active: &Active, ending: &Ending<'_>) -> Result<(), Fail> {
    remove_active(tx, tid)?;
    // A worker's own task is run by nobody else.
    let owner = Some(active.owner).filter(|owner| *owner != tid);
    end_task(tx, tid, &Past { owner, tally: active.tally, ttl: active.ttl, keyed: active.keyed }, ending)
}

/// Ends a task that waits.
pub(super) fn end_waiting(tx: &mut Tx<'_>, tid: Tid, waiting: Waiting, ending: &Ending<'_>) -> Result<(), Fail> {
    tx.dequeue(tid, waiting.place)?;
    let past =
        tx.db().prepare_cached("SELECT ttl, keyed FROM tasks WHERE tid = ?1")?.query_row([tid.as_i64()], |row| {
            Ok(Past { owner: None, tally: waiting.tally, ttl: row.get(0)?, keyed: row.get(1)? })
        })?;
    end_task(tx, tid, &past, ending)
}

/// Writes a task's terminal state. It has been taken from where it was.
fn end_task(tx: &mut Tx<'_>, tid: Tid, past: &Past, ending: &Ending<'_>) -> Result<(), Fail> {
    let report = serde_json::to_string(ending.report).expect("a report has only string keys");
    tx.db()
        .prepare_cached(
            "INSERT INTO done (tid, state, dead, owner, finished_at, expires_at, attempt, failures, losses, report)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
        )?
        .execute(params![
            tid.as_i64(),
            ending.state as u8,
            ending.dead,
            past.owner.map(Tid::as_i64),
            tx.now,
            tx.now.saturating_add(past.ttl),
            past.tally.attempt,
            past.tally.failures,
            past.tally.losses,
            report
        ])?;
    if past.keyed {
        tx.db().prepare_cached("DELETE FROM uniques WHERE tid = ?1")?.execute([tid.as_i64()])?;
    }
    tx.drop_control(tid)?;
    let detail = (!ending.report.exit.is_success()).then(|| ending.report.exit.to_string());
    tx.event(tid, ending.state.into(), past.tally.attempt, past.owner, detail.as_deref());
    Ok(())
}

fn remove_active(tx: &Tx<'_>, tid: Tid) -> rusqlite::Result<()> {
    tx.db().prepare_cached("DELETE FROM active WHERE tid = ?1")?.execute([tid.as_i64()])?;
    Ok(())
}
