//! The event log. The row of a task is its `created` event; all other events are rows of `events`.

use std::time::Duration;

use async_trait::async_trait;
use raddle_model::{TaskEvent, TaskEventKind, Tid};
use rusqlite::{Connection, params};

use super::{Sqlite, clock, notify::Topic, tx::tid_at};
use raddle_broker::{
    Log, Result,
    engine::follow::{FollowStep, LogRange},
};

/// The most events of one task that one read returns.
const MAX_EVENTS: u32 = 1000;

/// Events of all tasks after `after`.
fn select(db: &Connection, after: u64, max: u32) -> rusqlite::Result<Vec<TaskEvent>> {
    let after = after.min(i64::MAX as u64) as i64;
    // Both halves are in key order, so SQLite merges them without sorting and stops at the limit.
    db.prepare_cached(
        "SELECT id, tid, kind, attempt, worker, detail FROM events WHERE id > ?1
         UNION ALL SELECT tid, tid, 0, 0, NULL, NULL FROM tasks WHERE tid > ?1
         ORDER BY 1 LIMIT ?2",
    )?
    .query_map(params![after, max], event)?
    .collect()
}

/// The next events of one task after `after`.
pub(super) fn select_of(db: &Connection, tid: Tid, after: u64) -> rusqlite::Result<LogRange> {
    let mut events = Vec::new();
    let from = after.max(tid.as_u64() - 1).min(i64::MAX as u64);
    if from < tid.as_u64()
        && db
            .prepare_cached("SELECT 1 FROM tasks WHERE tid = ?1")?
            .exists([tid.as_i64()])?
    {
        events.push(created(tid));
    }
    let mut query = db.prepare_cached(
        "SELECT id, tid, kind, attempt, worker, detail FROM events WHERE tid = ?1 AND id > ?2 ORDER BY id LIMIT ?3",
    )?;
    let mut rows = query.query(params![tid.as_i64(), from as i64, MAX_EVENTS])?;
    let mut found = 0;
    while let Some(row) = rows.next()? {
        found += 1;
        events.push(event(row)?);
    }
    Ok(LogRange {
        scanned: events.last().map_or(after, |last| last.id.as_u64()),
        events,
        more: found == MAX_EVENTS,
    })
}

/// The last event; reads one row from the end of each table.
fn last(db: &Connection) -> rusqlite::Result<Vec<TaskEvent>> {
    db.prepare_cached(
        "SELECT id, tid, kind, attempt, worker, detail FROM events
         UNION ALL SELECT tid, tid, 0, 0, NULL, NULL FROM tasks
         ORDER BY 1 DESC LIMIT 1",
    )?
    .query_map([], event)?
    .collect()
}

fn created(tid: Tid) -> TaskEvent {
    TaskEvent {
        id: tid,
        tid,
        event: TaskEventKind::Created,
        at: clock::timestamp(tid.as_i64()),
        attempt: 0,
        worker: None,
        detail: None,
    }
}

fn event(row: &rusqlite::Row<'_>) -> rusqlite::Result<TaskEvent> {
    let id = tid_at(row, 0)?;
    let kind: u8 = row.get(2)?;
    let event = TaskEventKind::from_u8(kind)
        .ok_or(rusqlite::Error::IntegralValueOutOfRange(2, i64::from(kind)))?;
    let worker: Option<i64> = row.get(4)?;
    Ok(TaskEvent {
        id,
        tid: tid_at(row, 1)?,
        event,
        at: clock::timestamp(id.as_i64()),
        attempt: row.get(3)?,
        worker: worker.and_then(|raw| Tid::from_u64(raw as u64)),
        detail: row.get(5)?,
    })
}

#[async_trait]
impl Log for Sqlite {
    async fn events(
        &self,
        after: Option<u64>,
        tid: Option<Tid>,
        max: u32,
        wait: Duration,
    ) -> Result<Vec<TaskEvent>> {
        let Some(mut after) = after else {
            return self.read(|db| Ok(last(db)?)).await;
        };
        let mut wait = self.wait(Topic::Log, wait);
        loop {
            let from = after;
            let range = self
                .read(move |db| match tid {
                    None => Ok(LogRange {
                        events: select(db, from, max)?,
                        scanned: from,
                        more: false,
                    }),
                    Some(tid) => Ok(select_of(db, tid, from)?),
                })
                .await?;
            after = after.max(range.scanned);
            let step = range.next_step();
            if step == FollowStep::Return || step == FollowStep::Wait && !wait.next(None).await {
                return Ok(range.into_first(max));
            }
        }
    }
}
