//! Removing records that were kept for as long as their tasks asked for.
//!
//! Records have no index by the time at which they expire, which every end of a task would have to pay for. Instead it is remembered when the next one
//! does, and `purge` looks at none before. From then on it looks at all in turn, each once, however many calls that takes; such a round ends with the time of the
//! next. An end that expires sooner than what is remembered says so.

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

/// How many tasks go in one transaction, so that other writes need not wait long for it.
const AT_ONCE: usize = 1000;
/// How many records are looked at each time, for the same reason.
const RECORDS_LOOKED_AT: u32 = 50_000;
/// For how long one call goes on looking: others may wait for it.
const LOOKS_FOR: Duration = Duration::from_millis(250);
/// How many events are looked at each time, and for each task that goes: twice as many as most have. So those that are still to be
/// removed are never more than those that are kept.
const LOOKED_AT: u64 = 4000;
const LOOKED_AT_PER_TASK: u64 = 8;
/// Up to which event the present round has come.
const SWEPT: &str = "swept_events";
/// Up to which record the present round has come; 0 if there is none.
const SWEPT_RECORDS: &str = "swept_done";
/// Before this no record expires.
const NEXT_EXPIRY: &str = "next_expiry";
/// The same for those that the present round has looked at, and those that were written since the last one.
const ROUND_EXPIRY: &str = "round_expiry";

impl Sqlite {
    /// Goes on until something has gone, the round is over, or others have waited for it long enough: a caller that hears that nothing has gone does not ask again
    /// for a while.
    pub(super) async fn purge_expired(&self) -> Result<u64> {
        let began = Instant::now();
        loop {
            let directory = self.shared.output_directory();
            let (purged, is_over) = self
                .write(Durability::Process, move |tx| purge(tx, &directory))
                .await?;
            if purged > 0 || is_over || began.elapsed() >= LOOKS_FOR {
                return Ok(purged);
            }
        }
    }
}

impl Sqlite {
    /// Removes finished tasks before their time, some at a time so that other writes need not wait long.
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
            .prepare_cached("SELECT attempt FROM done WHERE tid = ?1")?
            .query_row([tid.as_i64()], |row| row.get(0))
            .optional()?;
        if let Some(attempts) = attempts {
            remove(tx, directory, *tid, attempts)?;
            deleted += 1;
        }
    }
    sweep_events(tx, LOOKED_AT + LOOKED_AT_PER_TASK * deleted)?;
    Ok(deleted)
}

/// Notes that a record will expire then.
pub(super) fn note_expiry(tx: &Tx<'_>, at: i64) -> rusqlite::Result<()> {
    tx.db()
        .prepare_cached(NOTE_EXPIRY)?
        .execute(params![NEXT_EXPIRY, ROUND_EXPIRY, at])?;
    Ok(())
}

const NOTE_EXPIRY: &str = "INSERT INTO meta (key, value) VALUES (?1, ?3), (?2, ?3)
    ON CONFLICT DO UPDATE SET value = excluded.value WHERE excluded.value < value";

/// Removes those that have expired among the next records. Also returns whether the round is over.
fn purge(tx: &mut Tx<'_>, directory: &Path) -> Result<(u64, bool), TxError> {
    let db = tx.db();
    let from = remembered(db, SWEPT_RECORDS)?.unwrap_or(0);
    let (mut purged, mut to) = (0, 0);
    if from > 0 || remembered(db, NEXT_EXPIRY)?.is_none_or(|next| next <= tx.now) {
        let PurgeScan {
            expired,
            next,
            last,
        } = look(tx, from)?;
        for (tid, attempts) in expired {
            remove(tx, directory, tid, attempts)?;
            purged += 1;
        }
        to = last;
        let round = remembered(db, ROUND_EXPIRY)?.unwrap_or(i64::MAX).min(next);
        remember(db, SWEPT_RECORDS, to)?;
        remember(db, ROUND_EXPIRY, if to == 0 { i64::MAX } else { round })?;
        if to == 0 {
            remember(db, NEXT_EXPIRY, round)?;
        }
    }
    sweep_events(tx, LOOKED_AT + LOOKED_AT_PER_TASK * purged)?;
    Ok((purged, to == 0))
}

/// What was found among the next records.
struct PurgeScan {
    /// Tasks that have expired, and how many attempts they had.
    expired: Vec<(Tid, u32)>,
    /// When the first of the others expires.
    next: i64,
    /// The last that was looked at; 0 if there are no more.
    last: i64,
}

fn look(tx: &Tx<'_>, from: i64) -> rusqlite::Result<PurgeScan> {
    let mut look = PurgeScan {
        expired: Vec::new(),
        next: i64::MAX,
        last: 0,
    };
    let mut records = tx.db().prepare_cached(
        "SELECT tid, attempt, expires_at FROM done WHERE tid > ?1 ORDER BY tid LIMIT ?2",
    )?;
    let mut records = records.query(params![from, RECORDS_LOOKED_AT])?;
    let mut left = RECORDS_LOOKED_AT;
    while let Some(record) = records.next()? {
        let (tid, expires_at): (Tid, i64) = (tid_at(record, 0)?, record.get(2)?);
        if expires_at > tx.now {
            look.next = look.next.min(expires_at);
        } else {
            look.expired.push((tid, record.get(1)?));
        }
        left -= 1;
        if left == 0 || look.expired.len() == AT_ONCE {
            look.last = tid.as_i64();
            break;
        }
    }
    Ok(look)
}

/// Removes a task with its records. Its files go first: without a record, nothing would tell whose they are.
fn remove(tx: &Tx<'_>, directory: &Path, tid: Tid, attempts: u32) -> rusqlite::Result<()> {
    output::remove(directory, tid, attempts);
    forget_spec(tx.db(), tid)?;
    for sql in [
        "DELETE FROM done WHERE tid = ?1",
        "DELETE FROM tasks WHERE tid = ?1",
        "DELETE FROM outputs WHERE tid = ?1",
        "DELETE FROM messages WHERE queue IN ('T' || ?1 || '.inbox', 'T' || ?1 || '.reserved', 'T' || ?1 || '.outbox',
                                              '!T' || ?1 || '.ctrl_in', 'T' || ?1 || '.ctrl_out')",
    ] {
        tx.db().prepare_cached(sql)?.execute([tid.as_i64()])?;
    }
    Ok(())
}

/// Removes what only the spec says where it is: the entry of a task that was taken before its lifetime was over, and that of its batch.
fn forget_spec(db: &Connection, tid: Tid) -> rusqlite::Result<()> {
    let spec: Option<String> = db
        .prepare_cached("SELECT spec FROM tasks WHERE tid = ?1")?
        .query_row([tid.as_i64()], |row| row.get(0))
        .optional()?;
    // A record that cannot be read is removed all the same.
    let Some(spec) = spec.and_then(|text| parse_spec(tid, &text).ok()) else {
        return Ok(());
    };
    leave_batch(db, &spec, tid)?;
    if let Some(at) = spec.expires_at(tid) {
        db.prepare_cached("DELETE FROM expiring WHERE expires_at = ?1 AND tid = ?2")?
            .execute(params![at, tid.as_i64()])?;
    }
    Ok(())
}

fn remembered(db: &Connection, key: &str) -> rusqlite::Result<Option<i64>> {
    db.prepare_cached("SELECT value FROM meta WHERE key = ?1")?
        .query_row([key], |row| row.get(0))
        .optional()
}

fn remember(db: &Connection, key: &str, value: i64) -> rusqlite::Result<()> {
    let set = "INSERT INTO meta (key, value) VALUES (?1, ?2) ON CONFLICT DO UPDATE SET value = ?2 WHERE value != ?2";
    db.prepare_cached(set)?.execute(params![key, value])?;
    Ok(())
}

/// Removes events of tasks that are gone, among the next `most`. Events have no index by task, which every one of them would have to pay
/// for: so all are looked at in turn, round after round.
fn sweep_events(tx: &Tx<'_>, most: u64) -> rusqlite::Result<()> {
    let db = tx.db();
    let from = remembered(db, SWEPT)?.unwrap_or(0);
    // The last one of those that are looked at; none if they are the last of all.
    let to: Option<i64> = db
        .prepare_cached("SELECT id FROM events WHERE id > ?1 ORDER BY id LIMIT 1 OFFSET ?2")?
        .query_row(params![from, most as i64 - 1], |row| row.get(0))
        .optional()?;
    db.prepare_cached(
        "DELETE FROM events WHERE id > ?1 AND id <= ?2 AND NOT EXISTS (SELECT 1 FROM tasks WHERE tasks.tid = events.tid)",
    )?
    .execute([from, to.unwrap_or(i64::MAX)])?;
    remember(db, SWEPT, to.unwrap_or(0))
}
