//! Paused queues: they take tasks, and none can be claimed from them.

use std::collections::BTreeSet;

use rusqlite::Connection;

use super::{
    notify::Topic,
    tx::{Tx, TxError},
};

/// Pauses or resumes a queue, and returns whether that changed anything.
pub(super) fn set_paused(tx: &mut Tx<'_>, queue: &str, paused: bool) -> Result<bool, TxError> {
    let sql = if paused {
        "INSERT OR IGNORE INTO paused_queues (queue) VALUES (?1)"
    } else {
        "DELETE FROM paused_queues WHERE queue = ?1"
    };
    let changed = tx.db().prepare_cached(sql)?.execute([queue])? > 0;
    if changed {
        // Claims that wait look again.
        tx.notify(Topic::Ready);
    }
    Ok(changed)
}

/// The paused queues.
pub(super) fn paused_queues(db: &Connection) -> rusqlite::Result<BTreeSet<String>> {
    db.prepare_cached("SELECT queue FROM paused_queues")?
        .query_map([], |row| row.get(0))?
        .collect()
}
