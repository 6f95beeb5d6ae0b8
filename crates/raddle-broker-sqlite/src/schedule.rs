//! Schedules, and tasks that expire.

use std::time::Duration;

use async_trait::async_trait;
use raddle_model::{ExitStatus, TaskState, Tid, time::unix_nanos};
use rusqlite::{Connection, OptionalExtension, params};

use super::{
    Sqlite,
    claim::spec_of,
    clock,
    complete::{TaskEnding, end_waiting},
    notify::Topic,
    reclaim::report,
    submit::{TaskRow, prepare, submit},
    tx::{Tx, TxError, find_waiting, tid_at},
    writer::Durability,
};
use raddle_broker::{
    DueItems, Result, ScheduleChange, ScheduleChangeOutcome, ScheduleView, Schedules,
    engine::{MAX_DUE, MAX_EXPIRED, parse_entry},
};

#[async_trait]
impl Schedules for Sqlite {
    async fn schedules(&self, name: Option<String>) -> Result<Vec<ScheduleView>> {
        self.read(|db| {
            let views: Vec<_> = db
                .prepare_cached(
                    "SELECT name, version, task, entry FROM schedules WHERE name = coalesce(?1, name) ORDER BY name",
                )?
                .query_map([name], view_at)?
                .collect::<rusqlite::Result<_>>()?;
            Ok(views.into_iter().flatten().collect())
        })
        .await
    }

    async fn change_schedule(&self, change: ScheduleChange) -> Result<ScheduleChangeOutcome> {
        let text = change.serialize_entry()?;
        let ScheduleChange {
            name,
            expected,
            entry,
            tasks,
            due,
        } = change;
        let tasks = tasks.into_iter().map(prepare).collect::<Result<Vec<_>>>()?;
        let next = entry.as_ref().and_then(|entry| entry.due()).map(unix_nanos);
        self.write(Durability::Power, move |tx| {
            if version_of(tx.db(), &name)? != expected {
                return Ok(ScheduleChangeOutcome::Conflict);
            }
            if due.is_some_and(|due| unix_nanos(due) > tx.now) {
                return Ok(ScheduleChangeOutcome::NotDue);
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
            // Schedulers wait for the topic of control messages.
            tx.notify(Topic::Control);
            Ok(ScheduleChangeOutcome::Applied { version, submitted })
        })
        .await
    }

    async fn due_items(&self, wait: Duration) -> Result<DueItems> {
        let mut wait = self.wait(Topic::Control, wait);
        loop {
            let (mut due_items, has_expired, again_in) = self.read(due_items).await?;
            if has_expired {
                due_items.expired = self.write(Durability::Process, expire).await?;
                if due_items.is_empty() {
                    // They were claimed in time or are finished, and are removed from the list now.
                    continue;
                }
            }
            if !due_items.is_empty() || !wait.next(again_in).await {
                return Ok(due_items);
            }
        }
    }
}

/// A schedule from the columns name, version, task and entry; `None` if this version cannot read
/// it.
fn view_at(row: &rusqlite::Row<'_>) -> rusqlite::Result<Option<ScheduleView>> {
    let (name, text): (String, String) = (row.get(0)?, row.get(3)?);
    let task = row
        .get::<_, Option<i64>>(2)?
        .and_then(|raw| Tid::from_u64(raw as u64));
    Ok(parse_entry(&name, tid_at(row, 1)?, task, &text))
}

fn version_of(db: &Connection, name: &str) -> rusqlite::Result<Option<Tid>> {
    db.prepare_cached("SELECT version FROM schedules WHERE name = ?1")?
        .query_row([name], |row| tid_at(row, 0))
        .optional()
}

/// Returns the due schedules, whether tasks may have expired, and when the next item is due.
fn due_items(db: &Connection) -> Result<(DueItems, bool, Option<Duration>), TxError> {
    let now = clock::wall() as i64;
    let due: Vec<_> = db
        .prepare_cached("SELECT name, version, task, entry FROM schedules WHERE next <= ?1 ORDER BY next LIMIT ?2")?
        .query_map(params![now, MAX_DUE as i64], view_at)?
        .collect::<rusqlite::Result<_>>()?;
    let due_items = DueItems {
        now: clock::timestamp(now),
        due: due.into_iter().flatten().collect(),
        expired: 0,
    };
    // An unreadable schedule is due only for newer versions.
    let next: Option<i64> = db
        .prepare_cached("SELECT min(next) FROM schedules WHERE next > ?1")?
        .query_row([now], |row| row.get(0))?;
    let first: Option<i64> = db
        .prepare_cached("SELECT min(expires_at) FROM expiries")?
        .query_row([], |row| row.get(0))?;
    let again = next.into_iter().chain(first).min();
    Ok((
        due_items,
        first.is_some_and(|at| at <= now),
        again.map(|at| Duration::from_nanos(u64::try_from(at - now).unwrap_or(0))),
    ))
}

/// Stores when new tasks expire.
pub(super) fn store_expiries(tx: &mut Tx<'_>, rows: &[TaskRow<'_>]) -> rusqlite::Result<()> {
    let expiring = rows
        .iter()
        .filter_map(|row| Some((row.task.spec.expires_at(row.tid)?, row.tid)));
    let expiring: Vec<(i64, Tid)> = expiring.collect();
    let Some(soonest) = expiring.iter().map(|(at, _)| *at).min() else {
        return Ok(());
    };
    let first: Option<i64> = tx
        .db()
        .prepare_cached("SELECT min(expires_at) FROM expiries")?
        .query_row([], |row| row.get(0))?;
    for (at, tid) in expiring {
        tx.db()
            .prepare_cached("INSERT INTO expiries (expires_at, tid) VALUES (?1, ?2)")?
            .execute(params![at, tid.as_i64()])?;
    }
    if first.is_none_or(|first| soonest < first) {
        tx.notify(Topic::Control);
    }
    Ok(())
}

/// Ends expired tasks and returns how many.
fn expire(tx: &mut Tx<'_>) -> Result<u64, TxError> {
    let due: Vec<(i64, Tid)> = tx
        .db()
        .prepare_cached("SELECT expires_at, tid FROM expiries WHERE expires_at <= ?1 ORDER BY expires_at LIMIT ?2")?
        .query_map(params![tx.now, MAX_EXPIRED as i64], |row| Ok((row.get(0)?, tid_at(row, 1)?)))?
        .collect::<rusqlite::Result<_>>()?;
    let mut ended = 0;
    for (at, tid) in due {
        tx.db()
            .prepare_cached("DELETE FROM expiries WHERE expires_at = ?1 AND tid = ?2")?
            .execute(params![at, tid.as_i64()])?;
        let Some(waiting) = find_waiting(tx.db(), tid)? else {
            continue;
        };
        let has_expired = match spec_of(tx, tid) {
            Ok(spec) => spec.has_expired(tid, waiting.counters, tx.now),
            // The claim that finds it ends it.
            Err(TxError::Caller(_)) => false,
            Err(fail) => return Err(fail),
        };
        if has_expired {
            let report = report(tx, ExitStatus::Expired);
            end_waiting(
                tx,
                tid,
                waiting,
                &TaskEnding {
                    state: TaskState::Cancelled,
                    dead: false,
                    report: &report,
                },
            )?;
            ended += 1;
        }
    }
    Ok(ended)
}
