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

use raddle_model::Tid;
use rusqlite::{Connection, OptionalExtension, params};

use super::{
    Sqlite,
    claim::parse_spec,
    output,
    submit::leave_batch,
    tx::{Tx, TxError, tid_at},
    writer::Durability,
};
use raddle_broker::Result;

/// The most tasks deleted in one transaction, so that other writes do not wait long.
const AT_ONCE: usize = 1000;
/// The most records scanned in one transaction, for the same reason.
const MAX_SCANNED_RECORDS: u32 = 50_000;
/// The time limit for one call that finds nothing.
const TIME_LIMIT: Duration = Duration::from_millis(250);
/// The number of events scanned per call and per deleted task: twice as many as most tasks have, so
/// that there are never more events of deleted tasks than of others.
const EVENTS_PER_CALL: u64 = 4000;
const EVENTS_PER_TASK: u64 = 8;
/// Key in `meta`: the last event that the current round has scanned.
const LAST_EVENT: &str = "swept_events";
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
        let attempts: Option<u32> = tx
            .db()
            .prepare_cached("SELECT attempt FROM finished WHERE tid = ?1")?
            .query_row([tid.as_i64()], |row| row.get(0))
            .optional()?;
        if let Some(attempts) = attempts {
            remove(tx, directory, *tid, attempts)?;
            deleted += 1;
        }
    }
    sweep_events(tx, EVENTS_PER_CALL + EVENTS_PER_TASK * deleted)?;
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
    let db = tx.db();
    let from = get_meta(db, LAST_RECORD)?.unwrap_or(0);
    let (mut purged, mut to) = (0, 0);
    if from > 0 || get_meta(db, NEXT_EXPIRY)?.is_none_or(|next| next <= tx.now) {
        let PurgeScan {
            expired,
            next,
            last,
        } = scan_finished(tx, from)?;
        for (tid, attempts) in expired {
            remove(tx, directory, tid, attempts)?;
            purged += 1;
        }
        to = last;
        let round = get_meta(db, ROUND_EXPIRY)?.unwrap_or(i64::MAX).min(next);
        set_meta(db, LAST_RECORD, to)?;
        set_meta(db, ROUND_EXPIRY, if to == 0 { i64::MAX } else { round })?;
        if to == 0 {
            set_meta(db, NEXT_EXPIRY, round)?;
        }
    }
    sweep_events(tx, EVENTS_PER_CALL + EVENTS_PER_TASK * purged)?;
    Ok((purged, to == 0))
}

/// The result of scanning some records.
struct PurgeScan {
    /// Expired tasks and their numbers of attempts.
    expired: Vec<(Tid, u32)>,
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
        "SELECT tid, attempt, expires_at FROM finished WHERE tid > ?1 ORDER BY tid LIMIT ?2",
    )?;
    let mut records = records.query(params![from, MAX_SCANNED_RECORDS])?;
    let mut left = MAX_SCANNED_RECORDS;
    while let Some(record) = records.next()? {
        let (tid, expires_at): (Tid, i64) = (tid_at(record, 0)?, record.get(2)?);
        if expires_at > tx.now {
            scan.next = scan.next.min(expires_at);
        } else {
            scan.expired.push((tid, record.get(1)?));
        }
        left -= 1;
        if left == 0 || scan.expired.len() == AT_ONCE {
            scan.last = tid.as_i64();
            break;
        }
    }
    Ok(scan)
}

/// Deletes a task and its records. Files first: without the record they could not be found.
fn remove(tx: &Tx<'_>, directory: &Path, tid: Tid, attempts: u32) -> rusqlite::Result<()> {
    output::remove(directory, tid, attempts);
    forget_spec(tx.db(), tid)?;
    for sql in [
        "DELETE FROM finished WHERE tid = ?1",
        "DELETE FROM tasks WHERE tid = ?1",
        "DELETE FROM outputs WHERE tid = ?1",
        "DELETE FROM messages WHERE queue IN ('T' || ?1 || '.inbox', 'T' || ?1 || '.reserved', 'T' || ?1 || '.outbox',
                                              '!T' || ?1 || '.ctrl_in', 'T' || ?1 || '.ctrl_out')",
    ] {
        tx.db().prepare_cached(sql)?.execute([tid.as_i64()])?;
    }
    Ok(())
}

/// Deletes entries that only the spec leads to: in `expiries` and `batches`.
fn forget_spec(db: &Connection, tid: Tid) -> rusqlite::Result<()> {
    let spec: Option<String> = db
        .prepare_cached("SELECT spec FROM tasks WHERE tid = ?1")?
        .query_row([tid.as_i64()], |row| row.get(0))
        .optional()?;
    // An unreadable record is deleted all the same.
    let Some(spec) = spec.and_then(|text| parse_spec(tid, &text).ok()) else {
        return Ok(());
    };
    leave_batch(db, &spec, tid)?;
    if let Some(at) = spec.expires_at(tid) {
        db.prepare_cached("DELETE FROM expiries WHERE expires_at = ?1 AND tid = ?2")?
            .execute(params![at, tid.as_i64()])?;
    }
    Ok(())
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

/// Deletes events of deleted tasks among the next `most` events. Events have no index by task,
/// which every event would have to maintain; so all are scanned in turn, round after round.
fn sweep_events(tx: &Tx<'_>, most: u64) -> rusqlite::Result<()> {
    let db = tx.db();
    let from = get_meta(db, LAST_EVENT)?.unwrap_or(0);
    // The last event of this scan; `None` if it is the last of all.
    let to: Option<i64> = db
        .prepare_cached("SELECT id FROM events WHERE id > ?1 ORDER BY id LIMIT 1 OFFSET ?2")?
        .query_row(params![from, most as i64 - 1], |row| row.get(0))
        .optional()?;
    db.prepare_cached(
        "DELETE FROM events WHERE id > ?1 AND id <= ?2 AND NOT EXISTS (SELECT 1 FROM tasks WHERE tasks.tid = events.tid)",
    )?
    .execute([from, to.unwrap_or(i64::MAX)])?;
    set_meta(db, LAST_EVENT, to.unwrap_or(0))
}
