//! Removing what nobody asked to keep any longer.

use raddle_core::Tid;
use rusqlite::params;

use super::tx::{Fail, Tx, tid_at};
use crate::Purged;

/// How many tasks go in one transaction, so that nobody waits long for it.
const AT_ONCE: u32 = 1000;

/// Removes expired tasks with their records. Returns their ids and attempts too: their files are removed outside the transaction.
pub(super) fn purge(tx: &mut Tx<'_>) -> Result<(Purged, Vec<(Tid, u32)>), Fail> {
    let expired: Vec<(Tid, u32, i64)> = tx
        .db()
        .prepare_cached(
            "SELECT tid, attempt, finished_at FROM done WHERE expires_at <= ?1 ORDER BY expires_at LIMIT ?2",
        )?
        .query_map(params![tx.now, AT_ONCE], |row| Ok((tid_at(row, 0)?, row.get(1)?, row.get(2)?)))?
        .collect::<rusqlite::Result<_>>()?;
    for (tid, ..) in &expired {
        for sql in [
            "DELETE FROM done WHERE tid = ?1",
            "DELETE FROM tasks WHERE tid = ?1",
            "DELETE FROM outputs WHERE tid = ?1",
            "DELETE FROM messages WHERE queue IN ('T' || ?1 || '.inbox', 'T' || ?1 || '.reserved', 'T' || ?1 || '.outbox',
                                                  '!T' || ?1 || '.ctrl_in', 'T' || ?1 || '.ctrl_out')",
        ] {
            tx.db().prepare_cached(sql)?.execute([tid.as_i64()])?;
        }
    }
    drop_old_events(tx)?;
    let purged = Purged { tasks: expired.len() as u64 };
    Ok((purged, expired.into_iter().map(|(tid, attempts, _)| (tid, attempts)).collect()))
}

/// Events have no index by task, so they go by age: those older than every task that is left, and those of tasks that are gone among
/// the oldest.
fn drop_old_events(tx: &Tx<'_>) -> rusqlite::Result<()> {
    tx.db()
        .prepare_cached(
            "DELETE FROM events WHERE id IN (
                 SELECT id FROM (SELECT id, tid FROM events ORDER BY id LIMIT ?1) AS oldest
                 WHERE NOT EXISTS (SELECT 1 FROM tasks WHERE tasks.tid = oldest.tid))",
        )?
        .execute([AT_ONCE * 4])?;
    Ok(())
}
