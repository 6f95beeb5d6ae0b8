//! Schedules, and tasks that expire.

use std::time::Duration;

use async_trait::async_trait;
use raddle_core::{Exit, State, Tid, moment::unix_nanos};
use rusqlite::{Connection, OptionalExtension, params};

use super::{
    Sqlite,
    bell::Topic,
    claim::spec_of,
    clock,
    finish::{Ending, end_waiting},
    reclaim::report,
    submit::{Prepared, Row, prepare, submit},
    tx::{Fail, Tx, find_waiting, tid_at},
    writer::Durability,
};
use crate::{
    Agenda, Result, ScheduleChange, ScheduleChanged, ScheduleView, Schedules,
    schedules::{AGENDA, EXPIRED_AT_ONCE, read_entry},
};

#[async_trait]
impl Schedules for Sqlite {
    async fn schedules(&self, name: Option<String>) -> Result<Vec<ScheduleView>> {
        self.read(|db| {
            let rows: Vec<_> = db
                .prepare_cached(
                    "SELECT name, version, task, entry FROM schedules WHERE name = coalesce(?1, name) ORDER BY name",
                )?
                .query_map([name], stored)?
                .collect::<rusqlite::Result<_>>()?;
            Ok(rows.into_iter().filter_map(Stored::view).collect())
        })
        .await
    }

    async fn change_schedule(&self, change: ScheduleChange) -> Result<ScheduleChanged> {
        let text = change.written()?;
        let ScheduleChange { name, seen, entry, tasks, due } = change;
        let tasks = tasks.into_iter().map(prepare).collect::<Result<Vec<_>>>()?;
        // Of many who fire the same, most are late: they should not cost a transaction.
        let (looked_for, is_late) = (name.clone(), move |db: &Connection| Ok(version_of(db, &name)? != seen));
        if self.read(is_late).await? {
            return Ok(ScheduleChanged::Raced);
        }
        let next = entry.as_ref().and_then(|entry| entry.due()).map(unix_nanos);
        let step = Step { name: looked_for, seen, next, text, tasks, due: due.map(unix_nanos) };
        self.write(Durability::Power, move |tx| step.take(tx)).await
    }

    async fn agenda(&self, wait: Duration) -> Result<Agenda> {
        let mut wait = self.wait(Topic::Control, wait);
        loop {
            let (agenda, again_in) = self.read(agenda).await?;
            if !agenda.is_empty() || !wait.again(again_in).await {
                return Ok(agenda);
            }
        }
    }

    async fn expire(&self) -> Result<u64> {
        self.write(Durability::Process, expire).await
    }
}

/// A change, ready for the writer's thread.
struct Step {
    name: String,
    seen: Option<Tid>,
    next: Option<i64>,
    text: Option<String>,
    tasks: Vec<Prepared>,
    due: Option<i64>,
}

impl Step {
    fn take(self, tx: &mut Tx<'_>) -> Result<ScheduleChanged, Fail> {
        let Self { name, seen, next, text, tasks, due } = self;
        if version_of(tx.db(), &name)? != seen {
            return Ok(ScheduleChanged::Raced);
        }
        if due.is_some_and(|due| due > tx.now) {
            return Ok(ScheduleChanged::Early);
        }
        let submitted = submit(tx, tasks)?;
        let (version, task) = (tx.next_id(), submitted.last().map(|last| last.tid().as_i64()));
        match text {
            Some(text) => tx
                .db()
                .prepare_cached(
                    "INSERT INTO schedules (name, version, next, task, entry) VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT DO UPDATE
                     SET version = ?2, next = ?3, task = coalesce(?4, task), entry = ?5",
                )?
                .execute(params![name, version.as_i64(), next, task, text])?,
            None => tx.db().prepare_cached("DELETE FROM schedules WHERE name = ?1")?.execute([name])?,
        };
        // Whoever waits for schedules waits for words as well, or as if it did.
        tx.touch(Topic::Control);
        Ok(ScheduleChanged::Made { version, submitted })
    }
}

/// A row, as it is read.
struct Stored(String, Tid, Option<Tid>, String);

impl Stored {
    fn view(self) -> Option<ScheduleView> {
        read_entry(&self.0, self.1, self.2, &self.3)
    }
}

fn stored(row: &rusqlite::Row<'_>) -> rusqlite::Result<Stored> {
    let task = row.get::<_, Option<i64>>(2)?.and_then(|raw| Tid::from_u64(raw as u64));
    Ok(Stored(row.get(0)?, tid_at(row, 1)?, task, row.get(3)?))
}

fn version_of(db: &Connection, name: &str) -> rusqlite::Result<Option<Tid>> {
    db.prepare_cached("SELECT version FROM schedules WHERE name = ?1")?
        .query_row([name], |row| tid_at(row, 0))
        .optional()
}

/// What is to be done now, and when more will be.
fn agenda(db: &Connection) -> Result<(Agenda, Option<Duration>), Fail> {
    let now = clock::wall() as i64;
    let mut agenda = Agenda { now: clock::timestamp(now), due: Vec::new(), expired: false };
    let due: Vec<Stored> = db
        .prepare_cached("SELECT name, version, task, entry FROM schedules WHERE next <= ?1 ORDER BY next LIMIT ?2")?
        .query_map(params![now, AGENDA as i64], stored)?
        .collect::<rusqlite::Result<_>>()?;
    agenda.due.extend(due.into_iter().filter_map(Stored::view));
    // One that cannot be read is due for others.
    let next: Option<i64> =
        db.prepare_cached("SELECT min(next) FROM schedules WHERE next > ?1")?.query_row([now], |row| row.get(0))?;
    let first: Option<i64> =
        db.prepare_cached("SELECT min(expires_at) FROM expiring")?.query_row([], |row| row.get(0))?;
    agenda.expired = first.is_some_and(|at| at <= now);
    let again = next.into_iter().chain(first).min();
    Ok((agenda, again.map(|at| Duration::from_nanos(u64::try_from(at - now).unwrap_or(0)))))
}

/// Notes which of some new tasks expire.
pub(super) fn note_expiries(tx: &mut Tx<'_>, rows: &[Row<'_>]) -> rusqlite::Result<()> {
    let expiring = rows.iter().filter_map(|row| Some((row.task.spec.expires_at(row.tid)?, row.tid)));
    let expiring: Vec<(i64, Tid)> = expiring.collect();
    let Some(soonest) = expiring.iter().map(|(at, _)| *at).min() else { return Ok(()) };
    let first: Option<i64> =
        tx.db().prepare_cached("SELECT min(expires_at) FROM expiring")?.query_row([], |row| row.get(0))?;
    for (at, tid) in expiring {
        tx.db()
            .prepare_cached("INSERT INTO expiring (expires_at, tid) VALUES (?1, ?2)")?
            .execute(params![at, tid.as_i64()])?;
    }
    if first.is_none_or(|first| soonest < first) {
        tx.touch(Topic::Control);
    }
    Ok(())
}

fn expire(tx: &mut Tx<'_>) -> Result<u64, Fail> {
    let due: Vec<(i64, Tid)> = tx
        .db()
        .prepare_cached("SELECT expires_at, tid FROM expiring WHERE expires_at <= ?1 ORDER BY expires_at LIMIT ?2")?
        .query_map(params![tx.now, EXPIRED_AT_ONCE as i64], |row| Ok((row.get(0)?, tid_at(row, 1)?)))?
        .collect::<rusqlite::Result<_>>()?;
    let mut ended = 0;
    for (at, tid) in due {
        tx.db()
            .prepare_cached("DELETE FROM expiring WHERE expires_at = ?1 AND tid = ?2")?
            .execute(params![at, tid.as_i64()])?;
        let Some(waiting) = find_waiting(tx.db(), tid)? else { continue };
        let has_expired = match spec_of(tx, tid) {
            Ok(spec) => spec.has_expired(tid, waiting.tally, tx.now),
            // Whoever claims it finds out.
            Err(Fail::Caller(_)) => false,
            Err(fail) => return Err(fail),
        };
        if has_expired {
            let report = report(tx, Exit::Expired);
            end_waiting(tx, tid, waiting, &Ending { state: State::Cancelled, dead: false, report: &report })?;
            ended += 1;
        }
    }
    Ok(ended)
}
