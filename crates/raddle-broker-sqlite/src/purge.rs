//! Deletion of records that are past their retention.
//!
//! Records have no index by expiry time, which every completion would have to maintain. Instead
//! `meta` holds the earliest expiry, and `purge` reads nothing before it. Then it scans all records
//! in turn, in as many calls as that takes; the round ends with the time of the next expiry. A
//! completion that expires earlier lowers the stored time.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use raddle_model::{TaskState, Tid};
use rusqlite::{Connection, OptionalExtension, params};

use super::{
    Sqlite,
    claim::parse_spec,
    counts::Counter,
    operations, output, rollups,
    submit::leave_batch,
    tx::{Tx, TxError, state_at, tid_at},
    writer::Durability,
};
use raddle_broker::{
    Result,
    queues::{AUDIT_KEPT, AUDIT_QUEUE},
};

/// The most tasks deleted in one transaction, so that other writes do not wait long.
const AT_ONCE: usize = 1000;
/// The most records scanned in one transaction, for the same reason.
const MAX_SCANNED_RECORDS: u32 = 50_000;
/// The time limit for one call that finds nothing.
const TIME_LIMIT: Duration = Duration::from_millis(250);
/// Key in `meta`: the last record that the current round has scanned; 0 between rounds.
const LAST_RECORD: &str = "swept_done";
/// Key in `meta`: no record expires before this time.
const NEXT_EXPIRY: &str = "next_expiry";
/// Key in `meta`: the earliest expiry among the records that the current round has scanned, and
/// those written since the last round.
const ROUND_EXPIRY: &str = "round_expiry";

impl Sqlite {
    /// Goes on until something was deleted, the round is over, or the time limit is reached: a
    /// caller that gets 0 does not call again for a while.
    pub(super) async fn purge_expired(&self) -> Result<u64> {
        let began = Instant::now();
        loop {
            let directory = self.shared.output_directory();
            let (purged, is_over) = self
                .write(Durability::Process, move |tx| purge(tx, &directory))
                .await?;
            if purged > 0 || is_over || began.elapsed() >= TIME_LIMIT {
                return Ok(purged);
            }
        }
    }
}

impl Sqlite {
    /// Deletes finished tasks early, in several transactions so that other writes do not wait long.
    pub(super) async fn delete_records(&self, tids: Vec<Tid>) -> Result<u64> {
        let mut deleted = 0;
        for tids in tids.chunks(AT_ONCE) {
            let (tids, directory) = (tids.to_vec(), self.shared.output_directory());
            deleted += self
                .write(Durability::Process, move |tx| delete(tx, &directory, &tids))
                .await?;
        }
        Ok(deleted)
    }
}

fn delete(tx: &mut Tx<'_>, directory: &Path, tids: &[Tid]) -> Result<u64, TxError> {
    let mut deleted = 0;
    for tid in tids {
        deleted += u64::from(remove(tx, directory, *tid)?);
    }
    Ok(deleted)
}

/// Lowers the stored times of the next expiry.
pub(super) fn lower_next_expiry(tx: &Tx<'_>, at: i64) -> rusqlite::Result<()> {
    tx.db()
        .prepare_cached(LOWER_NEXT_EXPIRY)?
        .execute(params![NEXT_EXPIRY, ROUND_EXPIRY, at])?;
    Ok(())
}

const LOWER_NEXT_EXPIRY: &str = "INSERT INTO meta (key, value) VALUES (?1, ?3), (?2, ?3)
    ON CONFLICT DO UPDATE SET value = excluded.value WHERE excluded.value < value";

/// Deletes expired tasks among the next records. Also returns whether the round is over.
fn purge(tx: &mut Tx<'_>, directory: &Path) -> Result<(u64, bool), TxError> {
    purge_others(tx)?;
    let from = get_meta(tx.db(), LAST_RECORD)?.unwrap_or(0);
    let (mut purged, mut to) = (0, 0);
    if from > 0 || get_meta(tx.db(), NEXT_EXPIRY)?.is_none_or(|next| next <= tx.now) {
        let PurgeScan {
            expired,
            next,
            last,
        } = scan_finished(tx, from)?;
        for tid in expired {
            purged += u64::from(remove(tx, directory, tid)?);
        }
        to = last;
        let db = tx.db();
        let round = get_meta(db, ROUND_EXPIRY)?.unwrap_or(i64::MAX).min(next);
        set_meta(db, LAST_RECORD, to)?;
        set_meta(db, ROUND_EXPIRY, if to == 0 { i64::MAX } else { round })?;
        if to == 0 {
            set_meta(db, NEXT_EXPIRY, round)?;
        }
    }
    Ok((purged, to == 0))
}

/// Deletes old statistics, records of operations, and entries of the audit trail.
fn purge_others(tx: &Tx<'_>) -> rusqlite::Result<()> {
    rollups::purge(tx)?;
    operations::purge(tx)?;
    tx.db()
        .prepare_cached(
            "DELETE FROM messages WHERE queue = ?1 AND id <= (SELECT id FROM messages WHERE queue = ?1 ORDER BY id DESC LIMIT 1 OFFSET ?2)",
        )?
        .execute(params![AUDIT_QUEUE, AUDIT_KEPT])?;
    Ok(())
}

/// The result of scanning some records.
struct PurgeScan {
    /// The expired tasks.
    expired: Vec<Tid>,
    /// The earliest expiry of the others.
    next: i64,
    /// The last scanned record; 0 if there are no more.
    last: i64,
}

fn scan_finished(tx: &Tx<'_>, from: i64) -> rusqlite::Result<PurgeScan> {
    let mut scan = PurgeScan {
        expired: Vec::new(),
        next: i64::MAX,
        last: 0,
    };
    let mut records = tx.db().prepare_cached(
        "SELECT tid, expires_at FROM finished WHERE tid > ?1 ORDER BY tid LIMIT ?2",
    )?;
    let mut records = records.query(params![from, MAX_SCANNED_RECORDS])?;
    let mut left = MAX_SCANNED_RECORDS;
    while let Some(record) = records.next()? {
        let (tid, expires_at): (Tid, i64) = (tid_at(record, 0)?, record.get(1)?);
        if expires_at > tx.now {
            scan.next = scan.next.min(expires_at);
        } else {
            scan.expired.push(tid);
        }
        left -= 1;
        if left == 0 || scan.expired.len() == AT_ONCE {
            scan.last = tid.as_i64();
            break;
        }
    }
    Ok(scan)
}

/// Deletes a finished task and its records, and returns whether there was one. Files first: without
/// the record they could not be found.
pub(super) fn remove(tx: &mut Tx<'_>, directory: &Path, tid: Tid) -> rusqlite::Result<bool> {
    let finished: Option<(u32, TaskState, bool)> = tx
        .db()
        .prepare_cached("SELECT attempt, state, dead_letter FROM finished WHERE tid = ?1")?
        .query_row([tid.as_i64()], |row| {
            Ok((row.get(0)?, state_at(row, 1)?, row.get(2)?))
        })
        .optional()?;
    let Some((attempts, state, is_dead)) = finished else {
        return Ok(false);
    };
    output::remove(directory, tid, attempts);
    if let Some(partition_id) = forget_spec(tx.db(), tid)? {
        tx.count(partition_id, Counter::for_state(state), -1);
        tx.count(partition_id, Counter::Dead, -i64::from(is_dead));
    }
    for sql in [
        "DELETE FROM finished WHERE tid = ?1",
        "DELETE FROM tasks WHERE tid = ?1",
        "DELETE FROM outputs WHERE tid = ?1",
        "DELETE FROM events WHERE tid = ?1",
        "DELETE FROM messages WHERE queue IN ('T' || ?1 || '.inbox', 'T' || ?1 || '.reserved', 'T' || ?1 || '.outbox',
                                              '!T' || ?1 || '.ctrl_in', 'T' || ?1 || '.ctrl_out')",
    ] {
        tx.db().prepare_cached(sql)?.execute([tid.as_i64()])?;
    }
    Ok(true)
}

/// Deletes entries that only the spec leads to: in `expiries` and `batches`. Returns the partition
/// of the task.
fn forget_spec(db: &Connection, tid: Tid) -> rusqlite::Result<Option<i64>> {
    let row: Option<(String, i64)> = db
        .prepare_cached("SELECT spec, partition_id FROM tasks WHERE tid = ?1")?
        .query_row([tid.as_i64()], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    let Some((text, partition_id)) = row else {
        return Ok(None);
    };
    // An unreadable record is deleted all the same.
    let Ok(spec) = parse_spec(tid, &text) else {
        return Ok(Some(partition_id));
    };
    leave_batch(db, &spec, tid)?;
    if let Some(at) = spec.expires_at(tid) {
        db.prepare_cached("DELETE FROM expiries WHERE expires_at = ?1 AND tid = ?2")?
            .execute(params![at, tid.as_i64()])?;
    }
    Ok(Some(partition_id))
}

fn get_meta(db: &Connection, key: &str) -> rusqlite::Result<Option<i64>> {
    db.prepare_cached("SELECT value FROM meta WHERE key = ?1")?
        .query_row([key], |row| row.get(0))
        .optional()
}

fn set_meta(db: &Connection, key: &str, value: i64) -> rusqlite::Result<()> {
    let set = "INSERT INTO meta (key, value) VALUES (?1, ?2) ON CONFLICT DO UPDATE SET value = ?2 WHERE value != ?2";
    db.prepare_cached(set)?.execute(params![key, value])?;
    Ok(())
}
