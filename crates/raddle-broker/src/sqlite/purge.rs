//! Removing what nobody asked to keep any longer.
//!
//! Records have no index by the time at which they expire, which every end of a task would have to pay for. Instead it is remembered when the next one
//! does, and nobody looks before. From then on all are looked at in turn, each once, however many calls that takes; such a round ends with the time of the
//! next. An end that expires sooner than what is remembered says so.

use std::{
    fs,
    time::{Duration, Instant},
};

use raddle_core::Tid;
use rusqlite::{Connection, OptionalExtension, params};

use super::{
    Sqlite, blocking, clock, output,
    tx::{Fail, Tx, tid_at},
    writer::Durability,
};
use crate::{Purged, Result};

/// How many tasks go in one transaction, so that nobody waits long for it.
const AT_ONCE: usize = 1000;
/// How many records are looked at each time, for the same reason.
const RECORDS_LOOKED_AT: u32 = 50_000;
/// For how long one call goes on looking: others may wait for it.
const LOOKS_FOR: Duration = Duration::from_millis(250);
/// Of how many tasks files are looked at each time.
const FILES_LOOKED_AT: usize = 1000;
/// How many events are looked at each time, and for each task that goes: twice as many as most have. So those that are still to be
/// removed are never more than those that are kept.
const LOOKED_AT: u64 = 4000;
const LOOKED_AT_PER_TASK: u64 = 8;
/// Up to which event the present round has come.
const SWEPT: &str = "swept_events";
/// Up to which record the present round has come; 0 if there is none.
const SWEPT_RECORDS: &str = "swept_done";
/// Up to which task files have been looked at; 0 for those of the oldest.
const SWEPT_FILES: &str = "swept_files";
/// Before this no record expires.
const NEXT_EXPIRY: &str = "next_expiry";
/// The same for those that the present round has looked at, and those that were written since the last one.
const ROUND_EXPIRY: &str = "round_expiry";

/// What was found among the next records.
struct Look {
    from: i64,
    /// What was remembered then of when the next one expires.
    known: Option<i64>,
    /// The last that was looked at; 0 if there are no more.
    to: i64,
    /// Those to be removed. Once a task is among them it stays there until it is.
    expired: Vec<Expired>,
    /// When the first of the others expires.
    next: i64,
}

/// A finished task that has been kept for as long as it asked for.
struct Expired {
    tid: Tid,
    attempts: u32,
}

impl Sqlite {
    /// Goes on until something has gone, the round is over, or others have waited for it long enough: whoever is told that nothing has gone does not ask again
    /// for a while.
    pub(super) async fn purge_expired(&self) -> Result<Purged> {
        let began = Instant::now();
        loop {
            let (purged, is_over) = self.purge_next().await?;
            if purged.tasks > 0 || is_over || began.elapsed() >= LOOKS_FOR {
                return Ok(purged);
            }
        }
    }

    /// Removes those that have expired among the next records. Also returns whether the round is over.
    async fn purge_next(&self) -> Result<(Purged, bool)> {
        let folder = self.shared.output_folder();
        let mut look = self.read(look).await?;
        if look.as_ref().is_some_and(|look| !look.expired.is_empty()) {
            look = blocking(move || {
                let expired = look.iter().flat_map(|look| &look.expired);
                expired.for_each(|task| output::remove(&folder, task.tid, task.attempts));
                Ok(look)
            })
            .await?;
        }
        let is_over = look.as_ref().is_none_or(|look| look.to == 0);
        if is_over && look.is_some() {
            self.remove_strays().await?;
        }
        let purged = self.write(Durability::Process, move |tx| purge(tx, look.as_ref())).await?;
        Ok((purged, is_over))
    }

    /// Removes files of tasks that are gone, among the next ones: a worker that was stopped while it wrote may have made one once more since. Once in a
    /// round, because it is in one that tasks go.
    async fn remove_strays(&self) -> Result<()> {
        let folder = self.shared.output_folder();
        let after = self.read(|db| Ok(remembered(db, SWEPT_FILES)?.unwrap_or(0))).await?;
        let files = blocking(move || Ok(output::files_after(&folder, after, FILES_LOOKED_AT))).await?;
        let is_last = files.len() < FILES_LOOKED_AT;
        let to = files.keys().next_back().filter(|_| !is_last).map_or(0, |last| last.as_i64());
        // A file is made after its task. So if that is not there now, it is there no longer.
        let strays = self.read(move |db| {
            let mut there = db.prepare_cached("SELECT 1 FROM tasks WHERE tid = ?1")?;
            let mut strays = Vec::new();
            for (tid, files) in files {
                if !there.exists([tid.as_i64()])? {
                    strays.extend(files);
                }
            }
            Ok(strays)
        });
        let strays = strays.await?;
        if !strays.is_empty() {
            blocking(move || {
                strays.iter().for_each(|stray| _ = fs::remove_file(stray));
                Ok(())
            })
            .await?;
        }
        if to != after {
            self.write(Durability::Process, move |tx| Ok(remember(tx.db(), SWEPT_FILES, to)?)).await?;
        }
        Ok(())
    }
}

/// Looks at the next records, if one of them may have expired.
fn look(db: &Connection) -> Result<Option<Look>, Fail> {
    let now = clock::wall() as i64;
    let (from, known) = (remembered(db, SWEPT_RECORDS)?.unwrap_or(0), remembered(db, NEXT_EXPIRY)?);
    if from == 0 && known.is_some_and(|next| next > now) {
        return Ok(None);
    }
    let mut look = Look { from, known, to: 0, expired: Vec::new(), next: i64::MAX };
    let mut records =
        db.prepare_cached("SELECT tid, attempt, expires_at FROM done WHERE tid > ?1 ORDER BY tid LIMIT ?2")?;
    let mut records = records.query(params![from, RECORDS_LOOKED_AT])?;
    let mut left = RECORDS_LOOKED_AT;
    while let Some(record) = records.next()? {
        let (tid, expires_at): (Tid, i64) = (tid_at(record, 0)?, record.get(2)?);
        if expires_at > now {
            look.next = look.next.min(expires_at);
        } else {
            look.expired.push(Expired { tid, attempts: record.get(1)? });
        }
        left -= 1;
        if left == 0 || look.expired.len() == AT_ONCE {
            look.to = tid.as_i64();
            break;
        }
    }
    Ok(Some(look))
}

/// Notes that a record will expire then.
pub(super) fn note_expiry(tx: &Tx<'_>, at: i64) -> rusqlite::Result<()> {
    tx.db().prepare_cached(NOTE_EXPIRY)?.execute(params![NEXT_EXPIRY, ROUND_EXPIRY, at])?;
    Ok(())
}

const NOTE_EXPIRY: &str = "INSERT INTO meta (key, value) VALUES (?1, ?3), (?2, ?3)
    ON CONFLICT DO UPDATE SET value = excluded.value WHERE excluded.value < value";

/// Removes expired tasks with their records. Their files are gone already: who found them without their record would not know whose they
/// were.
fn purge(tx: &mut Tx<'_>, look: Option<&Look>) -> Result<Purged, Fail> {
    let mut purged = Purged::default();
    for Expired { tid, .. } in look.iter().flat_map(|look| &look.expired) {
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
    if let Some(look) = look {
        go_on(tx, look)?;
    }
    sweep_events(tx, LOOKED_AT + LOOKED_AT_PER_TASK * purged.tasks)?;
    Ok(purged)
}

/// Remembers how far the round has come, unless another process has done so.
fn go_on(tx: &Tx<'_>, look: &Look) -> rusqlite::Result<()> {
    let db = tx.db();
    let round = remembered(db, ROUND_EXPIRY)?.unwrap_or(i64::MAX).min(look.next);
    remember(db, ROUND_EXPIRY, round)?;
    if remembered(db, SWEPT_RECORDS)?.unwrap_or(0) != look.from {
        return Ok(());
    }
    remember(db, SWEPT_RECORDS, look.to)?;
    if look.to == 0 {
        // What this round was begun for has gone with it. What is still to come was found by a round that has ended since this looked; and so was what
        // has come, if it is not what this saw.
        let known = remembered(db, NEXT_EXPIRY)?.filter(|next| *next > tx.now || Some(*next) != look.known);
        remember(db, NEXT_EXPIRY, known.map_or(round, |next| next.min(round)))?;
        remember(db, ROUND_EXPIRY, i64::MAX)?;
    }
    Ok(())
}

fn remembered(db: &Connection, key: &str) -> rusqlite::Result<Option<i64>> {
    db.prepare_cached("SELECT value FROM meta WHERE key = ?1")?.query_row([key], |row| row.get(0)).optional()
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
