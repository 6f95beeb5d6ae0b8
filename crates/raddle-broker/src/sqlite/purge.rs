//! Removing what nobody asked to keep any longer.

use raddle_core::Tid;
use rusqlite::{Connection, OptionalExtension, params};

use super::{
    clock,
    tx::{Fail, Tx, tid_at},
};
use crate::Purged;

/// How many tasks go in one transaction, so that nobody waits long for it.
const AT_ONCE: u32 = 1000;
/// How many events are looked at each time, and for each task that goes: twice as many as most have. So those that are still to be
/// removed are never more than those that are kept.
const LOOKED_AT: u64 = 4000;
const LOOKED_AT_PER_TASK: u64 = 8;
/// Up to which event the present round has come.
const SWEPT: &str = "swept_events";

/// A finished task that has been kept for as long as it asked for.
pub(super) struct Expired {
    pub(super) tid: Tid,
    pub(super) attempts: u32,
}

/// The tasks to be removed. Once a task is among them it stays there until it is.
pub(super) fn expired(db: &Connection) -> Result<Vec<Expired>, Fail> {
    let tasks = db
        .prepare_cached("SELECT tid, attempt FROM done WHERE expires_at <= ?1 ORDER BY expires_at LIMIT ?2")?
        .query_map(params![clock::wall() as i64, AT_ONCE], |row| {
            Ok(Expired { tid: tid_at(row, 0)?, attempts: row.get(1)? })
        })?
        .collect::<rusqlite::Result<_>>()?;
    Ok(tasks)
}

/// Removes expired tasks with their records. Their files are gone already: who found them without their record would not know whose they
/// were.
pub(super) fn purge(tx: &mut Tx<'_>, expired: &[Expired]) -> Result<Purged, Fail> {
    let mut purged = Purged::default();
    for Expired { tid, .. } in expired {
        // Another process may have been faster.
        purged.tasks += tx.db().prepare_cached("DELETE FROM done WHERE tid = ?1")?.execute([tid.as_i64()])? as u64;
        for sql in [
            "DELETE FROM tasks WHERE tid = ?1",
            "DELETE FROM outputs WHERE tid = ?1",
            "DELETE FROM messages WHERE queue IN ('T' || ?1 || '.inbox', 'T' || ?1 || '.reserved', 'T' || ?1 || '.outbox',
                                                  '!T' || ?1 || '.ctrl_in', 'T' || ?1 || '.ctrl_out')",
        ] {
            tx.db().prepare_cached(sql)?.execute([tid.as_i64()])?;
        }
    }
    sweep_events(tx, LOOKED_AT + LOOKED_AT_PER_TASK * purged.tasks)?;
    Ok(purged)
}

/// Removes events of tasks that are gone, among the next `most`. Events have no index by task, which every one of them would have to pay
/// for: so all are looked at in turn, round after round.
fn sweep_events(tx: &Tx<'_>, most: u64) -> rusqlite::Result<()> {
    let db = tx.db();
    let swept: Option<i64> =
        db.prepare_cached("SELECT value FROM meta WHERE key = ?1")?.query_row([SWEPT], |row| row.get(0)).optional()?;
    let from = swept.unwrap_or(0);
    // The last one of those that are looked at; none if they are the last of all.
    let to: Option<i64> = db
        .prepare_cached("SELECT id FROM events WHERE id > ?1 ORDER BY id LIMIT 1 OFFSET ?2")?
        .query_row(params![from, most as i64 - 1], |row| row.get(0))
        .optional()?;
    db.prepare_cached(
        "DELETE FROM events WHERE id > ?1 AND id <= ?2 AND NOT EXISTS (SELECT 1 FROM tasks WHERE tasks.tid = events.tid)",
    )?
    .execute([from, to.unwrap_or(i64::MAX)])?;
    let next = to.unwrap_or(0);
    if next != from {
        db.prepare_cached("INSERT OR REPLACE INTO meta (key, value) VALUES (?1, ?2)")?.execute(params![SWEPT, next])?;
    }
    Ok(())
}
