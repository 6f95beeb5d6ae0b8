//! The end of an attempt: finished, or given back.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::LazyLock,
    time::Duration,
};

use raddle_core::{EventKind, Next, Progress, Report, State, Tally, Tid, moment, settle};
use rusqlite::{Connection, params};

use super::{
    bulk::Bulk,
    chain,
    claim::spec_of,
    clock, control, purge,
    tx::{ACTIVE_COLUMNS, Active, Fail, Tx, Waiting, active_at, find_attempt},
};
use crate::{Fence, Finish, Release, Stream, Verdict};

/// Notes that a target has begun.
pub(super) fn started(tx: &mut Tx<'_>, fence: Fence, pid: Option<u32>) -> Result<(), Fail> {
    let changed = tx
        .db()
        .prepare_cached(
            "UPDATE active SET state = ?3, pid = ?4 WHERE tid = ?1 AND attempt = ?2 AND owner = ?6 AND state = ?5",
        )?
        .execute(params![
            fence.tid.as_i64(),
            fence.attempt,
            State::Running as u8,
            pid,
            State::Spawning as u8,
            fence.owner.as_i64()
        ])?;
    if changed > 0 {
        tx.event(fence.tid, EventKind::Running, fence.attempt, Some(fence.owner), None);
    }
    Ok(())
}

/// Notes that a running attempt stands still, or goes on.
pub(super) fn paused(tx: &mut Tx<'_>, fence: Fence, paused: bool) -> Result<(), Fail> {
    let changed = tx
        .db()
        .prepare_cached(
            "UPDATE active SET paused = ?3 WHERE tid = ?1 AND attempt = ?2 AND owner = ?4 AND paused != ?3",
        )?
        .execute(params![fence.tid.as_i64(), fence.attempt, paused, fence.owner.as_i64()])?;
    if changed > 0 {
        let kind = if paused { EventKind::Paused } else { EventKind::Resumed };
        tx.event(fence.tid, kind, fence.attempt, None, None);
    }
    Ok(())
}

/// Notes how far a running attempt has come.
pub(super) fn progress(tx: &mut Tx<'_>, fence: Fence, progress: &Progress) -> Result<(), Fail> {
    let text = serde_json::to_string(progress).expect("a number and a text serialize");
    tx.db()
        .prepare_cached("UPDATE active SET progress = ?3 WHERE tid = ?1 AND attempt = ?2 AND owner = ?4")?
        .execute(params![fence.tid.as_i64(), fence.attempt, text, fence.owner.as_i64()])?;
    Ok(())
}

/// Ends attempts. What needs no more than a record is written together at the end, and then what follows them.
pub(super) fn finish(tx: &mut Tx<'_>, batch: &[Finish]) -> Result<Vec<Verdict>, Fail> {
    let tids: Vec<Tid> = batch.iter().map(|finish| finish.fence.tid).collect();
    let mut actives = find_actives(tx.db(), &tids)?;
    let mut records = Vec::with_capacity(batch.len());
    let mut followed = Vec::new();
    let mut verdicts = Vec::with_capacity(batch.len());
    for Finish { fence, report, stdout, stderr } in batch {
        let Some(active) = take_latest(&mut actives, *fence) else {
            refuse(tx, *fence)?;
            verdicts.push(Verdict::Stale);
            continue;
        };
        keep_output(tx, *fence, Stream::Stdout, stdout, report.stdout_bytes)?;
        keep_output(tx, *fence, Stream::Stderr, stderr, report.stderr_bytes)?;
        let has_run = report.started_at.is_some() || report.exit.is_success();
        if active.state == State::Spawning && has_run {
            tx.event(fence.tid, EventKind::Running, fence.attempt, Some(active.owner), None);
        }
        verdicts.push(match what_next(tx, &active, report)? {
            Next::Done { state, dead, tally } => {
                if active.chained && report.exit.is_success() {
                    followed.push(fence.tid);
                } else if active.chained {
                    chain::discard(tx, fence.tid)?;
                }
                let active = Active { tally, ..active };
                records.push(Record::of_active(tx, &active, &Ending { state, dead, report }));
                Verdict::Done(state)
            }
            Next::Again { pause, tally } => again(tx, &active, report, pause, tally)?,
        });
    }
    let tids: Vec<Tid> = records.iter().map(|record| record.tid).collect();
    remove_actives(tx, &tids)?;
    write_records(tx, &records)?;
    chain::follow_up(tx, &followed)?;
    Ok(verdicts)
}

/// Notes that some of what an attempt wrote is not there.
pub(super) fn output_lost(tx: &mut Tx<'_>, fence: Fence, what: &str) -> Result<(), Fail> {
    if find_attempt(tx.db(), fence)?.is_some() {
        tx.event(fence.tid, EventKind::OutputLost, fence.attempt, None, Some(what));
    }
    Ok(())
}

/// The attempt that a write speaks of, if it is still the latest. A second write of the same batch finds none.
fn take_latest(actives: &mut HashMap<Tid, Active>, fence: Fence) -> Option<Active> {
    match actives.entry(fence.tid) {
        Entry::Occupied(entry) if entry.get().is(fence) => Some(entry.remove()),
        _ => None,
    }
}

/// Keeps the output of an attempt in a row, when all of it is at hand. More than that means that the beginning is in a file, and
/// the end was added to it before this.
fn keep_output(tx: &Tx<'_>, fence: Fence, stream: Stream, tail: &[u8], total: u64) -> rusqlite::Result<()> {
    if !tail.is_empty() && total <= tail.len() as u64 {
        tx.db()
            .prepare_cached("INSERT OR REPLACE INTO outputs (tid, attempt, stream, bytes) VALUES (?1, ?2, ?3, ?4)")?
            .execute(params![fence.tid.as_i64(), fence.attempt, stream as u8, tail])?;
    }
    Ok(())
}

pub(super) fn release(tx: &mut Tx<'_>, batch: &[Release]) -> Result<Vec<Verdict>, Fail> {
    batch.iter().map(|release| release_one(tx, release)).collect()
}

fn release_one(tx: &mut Tx<'_>, release: &Release) -> Result<Verdict, Fail> {
    let fence = release.fence;
    let Some(active) = find_attempt(tx.db(), fence)? else {
        refuse(tx, fence)?;
        return Ok(Verdict::Stale);
    };
    give_back(tx, &active, EventKind::Released, &release.reason)
}

/// Counts and logs a write that came too late.
pub(super) fn refuse(tx: &mut Tx<'_>, fence: Fence) -> rusqlite::Result<()> {
    tx.count("stale_writes")?;
    // The record may have been purged meanwhile, and the log holds nothing of tasks that are not there.
    if tx.db().prepare_cached("SELECT 1 FROM tasks WHERE tid = ?1")?.exists([fence.tid.as_i64()])? {
        tx.event(fence.tid, EventKind::StaleWrite, fence.attempt, None, None);
    }
    Ok(())
}

/// Ends one attempt and does what follows from it.
pub(super) fn end_attempt(tx: &mut Tx<'_>, active: &Active, report: &Report) -> Result<Verdict, Fail> {
    match what_next(tx, active, report)? {
        Next::Done { state, dead, tally } => {
            end_active(tx, &Active { tally, ..*active }, &Ending { state, dead, report })?;
            Ok(Verdict::Done(state))
        }
        Next::Again { pause, tally } => again(tx, active, report, pause, tally),
    }
}

/// Asks [`settle`]. Success leaves nothing to decide, and so no reason to read the spec.
fn what_next(tx: &Tx<'_>, active: &Active, report: &Report) -> Result<Next, Fail> {
    if report.exit.is_success() {
        return Ok(Next::Done { state: State::Completed, dead: false, tally: active.tally });
    }
    match spec_of(tx, active.tid) {
        Ok(spec) => Ok(settle(&spec, active.tid, active.tally, &report.exit)),
        // A task that nobody can read cannot be tried again either, and must not keep the others from being written.
        Err(Fail::Caller(_)) => Ok(Next::Done { state: State::Failed, dead: false, tally: active.tally }),
        Err(fail) => Err(fail),
    }
}

/// Lets a task wait for another attempt.
fn again(tx: &mut Tx<'_>, active: &Active, report: &Report, pause: Duration, tally: Tally) -> Result<Verdict, Fail> {
    leave(tx, active)?;
    let kind = settle::event_before_another(&report.exit);
    tx.event(active.tid, kind, tally.attempt, Some(active.owner), Some(&report.exit.to_string()));
    wait_again(tx, &Active { tally, ..*active }, Some(moment::nanos_after(tx.now, pause)))
}

/// Puts a task back as if it had not been claimed.
pub(super) fn give_back(tx: &mut Tx<'_>, active: &Active, kind: EventKind, reason: &str) -> Result<Verdict, Fail> {
    leave(tx, active)?;
    tx.event(active.tid, kind, active.tally.attempt, Some(active.owner), Some(reason));
    wait_again(tx, active, None)
}

/// Lets a task wait for its next attempt; held, if the last one was told to stand still: nobody has said that it may go on.
fn wait_again(tx: &mut Tx<'_>, last: &Active, run_at: Option<i64>) -> Result<Verdict, Fail> {
    if last.paused {
        tx.hold(last.tid, last.tally, run_at)?;
    } else {
        tx.enqueue(last.tid, last.tally, run_at)?;
    }
    // Words that came for the attempt and were not obeyed in time hold for the task.
    if let Some(state) = control::apply_pending(tx, last.tid, last.told)? {
        return Ok(Verdict::Done(state));
    }
    Ok(Verdict::Again(clock::timestamp(run_at.unwrap_or(tx.now))))
}

/// How a task comes to its end.
#[derive(Clone, Copy)]
pub(super) struct Ending<'a> {
    pub(super) state: State,
    pub(super) dead: bool,
    pub(super) report: &'a Report,
}

/// Ends a task that a worker has.
pub(super) fn end_active(tx: &mut Tx<'_>, active: &Active, ending: &Ending<'_>) -> Result<(), Fail> {
    leave(tx, active)?;
    let record = Record::of_active(tx, active, ending);
    write_records(tx, &[record])
}

/// Ends a task that waits.
pub(super) fn end_waiting(tx: &mut Tx<'_>, tid: Tid, waiting: Waiting, ending: &Ending<'_>) -> Result<(), Fail> {
    tx.dequeue(tid, waiting.place)?;
    let (ttl, keyed): (i64, bool) = tx
        .db()
        .prepare_cached("SELECT ttl, keyed FROM tasks WHERE tid = ?1")?
        .query_row([tid.as_i64()], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let expires_at = tx.now.saturating_add(ttl);
    let record = Record { tid, ending: *ending, owner: None, expires_at, tally: waiting.tally, keyed, own: false };
    write_records(tx, &[record])
}

/// The last word on a task.
struct Record<'a> {
    tid: Tid,
    ending: Ending<'a>,
    owner: Option<Tid>,
    expires_at: i64,
    tally: Tally,
    keyed: bool,
    own: bool,
}

impl<'a> Record<'a> {
    fn of_active(tx: &Tx<'_>, active: &Active, ending: &Ending<'a>) -> Self {
        let Active { tid, tally, keyed, own, .. } = *active;
        // A worker's own task has no other owner.
        let owner = Some(active.owner).filter(|owner| *owner != tid);
        let expires_at = tx.now.saturating_add(active.ttl);
        Self { tid, ending: *ending, owner, expires_at, tally, keyed, own }
    }
}

/// Writes terminal states. The tasks have been taken from where they were.
fn write_records(tx: &mut Tx<'_>, records: &[Record<'_>]) -> Result<(), Fail> {
    let now = tx.now;
    INSERT_DONE.write(tx.db(), records, |row, record| {
        let Report { exit, started_at, ended_at, usage, stdout_bytes, stderr_bytes, value } = record.ending.report;
        row.bind(record.tid.as_i64())?;
        row.bind(record.ending.state as u8)?;
        row.bind(record.ending.dead)?;
        row.bind(record.owner.map(Tid::as_i64))?;
        row.bind(now)?;
        row.bind(record.expires_at)?;
        row.bind(record.tally.attempt)?;
        row.bind(record.tally.failures)?;
        row.bind(record.tally.losses)?;
        // Success is what most have in common, and needs no words.
        row.bind((!exit.is_success()).then(|| json(exit)))?;
        row.bind(started_at.map(moment::unix_nanos))?;
        row.bind(moment::unix_nanos(*ended_at))?;
        row.bind(usage.peak_rss_bytes as i64)?;
        row.bind(usage.user_us as i64)?;
        row.bind(usage.system_us as i64)?;
        row.bind(*stdout_bytes as i64)?;
        row.bind(*stderr_bytes as i64)?;
        row.bind(value.as_ref().map(json))
    })?;
    if let Some(soonest) = records.iter().map(|record| record.expires_at).min() {
        purge::note_expiry(tx, soonest)?;
    }
    for Record { tid, ending, owner, tally, keyed, own, .. } in records {
        if *keyed {
            tx.db().prepare_cached("DELETE FROM uniques WHERE tid = ?1")?.execute([tid.as_i64()])?;
        }
        if let Some(owner) = owner.filter(|_| *own) {
            tx.depart(owner)?;
        }
        tx.drop_control(*tid)?;
        let exit = &ending.report.exit;
        let detail = (!exit.is_success()).then(|| exit.to_string());
        tx.event(*tid, ending.state.into(), tally.attempt, *owner, detail.as_deref());
    }
    Ok(())
}

static INSERT_DONE: LazyLock<Bulk> = LazyLock::new(|| {
    let columns =
        "tid, state, dead, owner, finished_at, expires_at, attempt, failures, losses, exit, started_at, ended_at,
                   peak_rss, user_us, system_us, stdout_bytes, stderr_bytes, value";
    Bulk::insert(&format!("done ({columns})"), 18)
});
static DELETE_ACTIVE: LazyLock<Bulk> = LazyLock::new(|| Bulk::keys("DELETE FROM active WHERE tid IN"));
static FIND_ACTIVE: LazyLock<Bulk> =
    LazyLock::new(|| Bulk::keys(&format!("SELECT {ACTIVE_COLUMNS} FROM active WHERE tid IN")));

fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).expect("it has only string keys")
}

/// Takes a task from its worker after an attempt that did not succeed, with what that has chained.
fn leave(tx: &Tx<'_>, active: &Active) -> rusqlite::Result<()> {
    if active.chained {
        chain::discard(tx, active.tid)?;
    }
    remove_actives(tx, &[active.tid])
}

fn remove_actives(tx: &Tx<'_>, tids: &[Tid]) -> rusqlite::Result<()> {
    DELETE_ACTIVE.write(tx.db(), tids, |row, tid| row.bind(tid.as_i64()))
}

/// The attempts that workers have of these tasks.
fn find_actives(db: &Connection, tids: &[Tid]) -> rusqlite::Result<HashMap<Tid, Active>> {
    let mut found = HashMap::with_capacity(tids.len());
    FIND_ACTIVE.find(db, tids, |row| {
        let active = active_at(row)?;
        found.insert(active.tid, active);
        Ok(())
    })?;
    Ok(found)
}
