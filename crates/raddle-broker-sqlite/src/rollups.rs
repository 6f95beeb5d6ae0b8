//! Outcomes by minute and name.
//!
//! A transaction counts in memory, under names that claims have left in the cache. Counts are
//! stored with the next transaction, at most a few times a second, or when the thread has been idle
//! for a second: a killed process loses that much of the statistics and nothing else.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use jiff::Timestamp;
use raddle_model::{TaskSpec, Tid, time::unix_nanos};
use rusqlite::{Connection, OptionalExtension, params, types::Type};

use super::{
    Sqlite,
    claim::spec_of,
    tx::{Tx, TxError},
    writer::Durability,
};
use raddle_broker::{
    Result, Rollups,
    rollups::{
        MAX_NAMES, MAX_ROLLUPS, OTHER_NAMES, OutcomeEvent, OutcomeRollup, Outcomes, PendingRollups,
        ROLLUPS_KEPT, first_wait, minute_of, minute_start,
    },
};

/// Counts that stay in memory for as long are stored when the writer thread is idle.
pub(super) const FLUSH_AFTER: Duration = Duration::from_secs(1);
/// The number of times that counts are stored at once in a period of that length. Short-lived
/// processes store all of theirs with their few transactions.
const FLUSHES: u32 = 4;
/// The most names of claimed tasks that are remembered. Others are read with the spec.
const MAX_CLAIMED: usize = 10_000;

/// Counts that are not stored yet.
#[derive(Default)]
pub(super) struct RollupBuffer {
    pending: PendingRollups,
    /// The beginning of the period, and how often counts were stored in it.
    period: Option<(Instant, u32)>,
}

/// The names of the tasks that this process has claimed.
#[derive(Default)]
pub(super) struct ClaimedNames(HashMap<Tid, Box<str>>);

impl RollupBuffer {
    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    pub(super) fn add(&mut self, counted: PendingRollups) {
        self.pending.merge(counted);
    }

    /// Takes the counts if they may be stored now.
    pub(super) fn take_if_due(&mut self) -> Option<PendingRollups> {
        let now = Instant::now();
        let (since, flushes) = self
            .period
            .filter(|(since, _)| now.duration_since(*since) < FLUSH_AFTER)
            .unwrap_or((now, 0));
        if flushes >= FLUSHES {
            return None;
        }
        self.period = Some((since, flushes + 1));
        Some(std::mem::take(&mut self.pending))
    }

    /// Stores the next counts with the next transaction.
    pub(super) fn make_due(&mut self) {
        self.period = None;
    }
}

impl ClaimedNames {
    pub(super) fn insert(&mut self, tid: Tid, name: &str) {
        if self.0.len() >= MAX_CLAIMED {
            self.0.clear();
        }
        self.0.insert(tid, name.into());
    }

    pub(super) fn remove(&mut self, tid: Tid) -> Option<Box<str>> {
        self.0.remove(&tid)
    }
}

/// Counts a claim.
pub(super) fn count_claim(tx: &mut Tx<'_>, tid: Tid, spec: &TaskSpec, is_first: bool) {
    let name = spec.display_name();
    tx.cache.claimed_names.insert(tid, name);
    if is_first {
        tx.count_outcome(name, OutcomeEvent::Claimed(first_wait(tid, spec, tx.now)));
    }
}

/// Counts the end of a task, or of an attempt that is followed by another.
pub(super) fn count_end(tx: &mut Tx<'_>, tid: Tid, event: OutcomeEvent) -> Result<(), TxError> {
    let name = match tx.cache.claimed_names.remove(tid) {
        Some(name) => name,
        None => match spec_of(tx, tid) {
            Ok(spec) => spec.display_name().into(),
            // It counts under the name of the others.
            Err(TxError::Caller(_)) => OTHER_NAMES.into(),
            Err(fail) => return Err(fail),
        },
    };
    tx.count_outcome(&name, event);
    Ok(())
}

/// Stores counts.
pub(super) fn store(db: &Connection, counts: &mut PendingRollups) -> rusqlite::Result<()> {
    for (minute, name, outcomes) in counts.take() {
        let mut name = name;
        let mut stored = find(db, minute, &name)?;
        if stored.is_none() && name != OTHER_NAMES {
            let names: i64 = db
                .prepare_cached("SELECT count(*) FROM rollups WHERE minute = ?1")?
                .query_row([minute], |row| row.get(0))?;
            if names >= MAX_NAMES as i64 {
                name = OTHER_NAMES.to_owned();
                stored = find(db, minute, &name)?;
            }
        }
        let mut sum = stored.unwrap_or_default();
        sum.merge(&outcomes);
        let text = serde_json::to_string(&sum).expect("counts serialize");
        db.prepare_cached(
            "INSERT OR REPLACE INTO rollups (minute, name, outcomes) VALUES (?1, ?2, ?3)",
        )?
        .execute(params![minute, name, text])?;
    }
    Ok(())
}

fn find(db: &Connection, minute: i64, name: &str) -> rusqlite::Result<Option<Outcomes>> {
    db.prepare_cached("SELECT outcomes FROM rollups WHERE minute = ?1 AND name = ?2")?
        .query_row(params![minute, name], |row| outcomes_at(row, 0))
        .optional()
}

fn outcomes_at(row: &rusqlite::Row<'_>, column: usize) -> rusqlite::Result<Outcomes> {
    let text: String = row.get(column)?;
    serde_json::from_str(&text).map_err(|error| {
        rusqlite::Error::FromSqlConversionFailure(column, Type::Text, Box::new(error))
    })
}

/// Deletes rollups that are past their retention.
pub(super) fn purge(tx: &Tx<'_>) -> rusqlite::Result<()> {
    let kept = i64::try_from(ROLLUPS_KEPT.as_nanos()).unwrap_or(i64::MAX);
    tx.db()
        .prepare_cached("DELETE FROM rollups WHERE minute < ?1")?
        .execute([minute_of(tx.now.saturating_sub(kept))])?;
    Ok(())
}

#[async_trait]
impl Rollups for Sqlite {
    async fn outcome_rollups(
        &self,
        since: Timestamp,
        until: Timestamp,
        name: Option<String>,
    ) -> Result<Vec<OutcomeRollup>> {
        if !self.shared.is_read_only {
            // A process sees at once its own counts.
            self.write(Durability::Process, |tx| {
                tx.rollups.make_due();
                Ok(())
            })
            .await?;
        }
        let minute_before = |at: Timestamp| minute_of(unix_nanos(at).saturating_sub(1)) + 1;
        let (first, end) = (minute_of(unix_nanos(since)), minute_before(until));
        self.read(move |db| Ok(select(db, first, end, name.as_deref())?))
            .await
    }
}

fn select(
    db: &Connection,
    first: i64,
    end: i64,
    name: Option<&str>,
) -> rusqlite::Result<Vec<OutcomeRollup>> {
    let mut query = db.prepare_cached(
        "SELECT minute, name, outcomes FROM rollups WHERE minute >= ?1 AND minute < ?2 AND name = coalesce(?3, name)
         ORDER BY minute, name",
    )?;
    let mut rows = query.query(params![first, end, name])?;
    let (mut found, mut last) = (Vec::new(), None);
    while let Some(row) = rows.next()? {
        let minute: i64 = row.get(0)?;
        if found.len() >= MAX_ROLLUPS && last != Some(minute) {
            break;
        }
        last = Some(minute);
        found.push(OutcomeRollup {
            minute: minute_start(minute),
            name: row.get(1)?,
            outcomes: outcomes_at(row, 2)?,
        });
    }
    Ok(found)
}
