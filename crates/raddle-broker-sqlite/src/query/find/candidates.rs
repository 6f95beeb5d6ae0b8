//! The tasks that a search looks at, newest first, from the table or index that holds the fewest of
//! them: a few running tasks are found without reading a million finished ones.

use std::vec::IntoIter;

use raddle_model::{TaskState, Tid};
use rusqlite::{Connection, OptionalExtension, params};

use crate::tx::tid_at;
use raddle_broker::TaskFilter;

/// The number of ids read at once.
const AT_ONCE: usize = 256;

/// The candidates of a search.
pub(super) enum Candidates {
    /// These ids.
    Named(IntoIter<Tid>),
    /// The rows of a statement.
    Rows(Scan),
    /// Waiting and claimed tasks, from all their tables.
    Unfinished(Vec<Head>),
}

/// A statement that returns ids and states below an id.
pub(super) struct Scan {
    sql: &'static str,
    /// The second parameter.
    key: Option<rusqlite::types::Value>,
    /// Rows below this id were not read yet; `None` if all were.
    below: Option<i64>,
    least: i64,
    read: IntoIter<(Tid, Option<TaskState>)>,
}

/// One table, or one part of `ready`, that is in the order of ids, and its newest id that was not
/// returned.
pub(super) struct Head {
    source: Source,
    newest: Option<Tid>,
    /// The id from which on the filter wants tasks.
    least: i64,
}

#[derive(Clone, Copy)]
enum Source {
    Ready { partition_id: i64, rank: i64 },
    Delayed,
    Paused,
    Active,
}

impl Candidates {
    /// The candidates for a filter that names no ids.
    pub(super) fn search(db: &Connection, filter: &TaskFilter) -> rusqlite::Result<Self> {
        let all =
            |is: fn(&TaskState) -> bool| !filter.states.is_empty() && filter.states.iter().all(is);
        let (only_active, only_finished) = (
            all(|state| state.is_active()),
            all(|state| state.is_terminal()),
        );
        // An active task was not resubmitted, so it is still in the batch that its spec names.
        let batch = filter.batch.clone().filter(|_| !only_active);
        let owner = filter.worker.filter(|_| only_active && !filter.dead);
        let (sql, key) = if let Some(batch) = batch {
            (
                "SELECT tid, NULL FROM batches WHERE tid < ?1 AND batch = ?2 AND tid >= ?3 ORDER BY tid DESC LIMIT ?4",
                Some(batch.into()),
            )
        } else if filter.dead {
            (
                "SELECT tid, NULL FROM finished WHERE dead_letter = 1 AND tid < ?1 AND ?2 IS NULL AND tid >= ?3 ORDER BY tid DESC LIMIT ?4",
                None,
            )
        } else if let Some(owner) = owner {
            (
                "SELECT tid, NULL FROM active WHERE tid < ?1 AND owner = ?2 AND tid >= ?3 ORDER BY tid DESC LIMIT ?4",
                Some(owner.as_i64().into()),
            )
        } else if all(|state| !state.is_terminal()) {
            return unfinished(db, filter).map(Self::Unfinished);
        } else if only_finished {
            (
                "SELECT tid, state FROM finished WHERE tid < ?1 AND ?2 IS NULL AND tid >= ?3 ORDER BY tid DESC LIMIT ?4",
                None,
            )
        } else {
            (
                "SELECT tid, NULL FROM tasks WHERE tid < ?1 AND ?2 IS NULL AND tid >= ?3 ORDER BY tid DESC LIMIT ?4",
                None,
            )
        };
        let (below, least) = bounds(filter);
        Ok(Self::Rows(Scan {
            sql,
            key,
            below: Some(below),
            least,
            read: Vec::new().into_iter(),
        }))
    }

    /// The next candidate, with its state if that was read along.
    pub(super) fn next(
        &mut self,
        db: &Connection,
    ) -> rusqlite::Result<Option<(Tid, Option<TaskState>)>> {
        match self {
            Self::Named(named) => Ok(named.next().map(|tid| (tid, None))),
            Self::Rows(scan) => scan.next(db),
            Self::Unfinished(heads) => next_of(heads, db),
        }
    }
}

/// The id below which, and that from which on, a filter wants tasks.
fn bounds(filter: &TaskFilter) -> (i64, i64) {
    (
        filter.before.map_or(i64::MAX, Tid::as_i64),
        filter.since.map_or(0, Tid::as_i64),
    )
}

impl Scan {
    fn next(&mut self, db: &Connection) -> rusqlite::Result<Option<(Tid, Option<TaskState>)>> {
        if let Some(next) = self.read.next() {
            return Ok(Some(next));
        }
        let Some(below) = self.below else {
            return Ok(None);
        };
        let rows: Vec<_> = db
            .prepare_cached(self.sql)?
            .query_map(
                params![below, self.key, self.least, AT_ONCE as i64],
                |row| {
                    let state: Option<u8> = row.get(1)?;
                    Ok((tid_at(row, 0)?, state.and_then(TaskState::from_u8)))
                },
            )?
            .collect::<rusqlite::Result<_>>()?;
        self.below = rows
            .last()
            .filter(|_| rows.len() == AT_ONCE)
            .map(|(tid, _)| tid.as_i64());
        self.read = rows.into_iter();
        Ok(self.read.next())
    }
}

/// All parts that hold unfinished tasks of a filter.
fn unfinished(db: &Connection, filter: &TaskFilter) -> rusqlite::Result<Vec<Head>> {
    let mut sources = Vec::new();
    if filter.states.contains(&TaskState::Created) {
        let mut partitions = db.prepare_cached(
            "SELECT partition_id, queue FROM counts JOIN partitions ON id = partition_id WHERE ready > 0",
        )?;
        let mut rows = partitions.query([])?;
        while let Some(row) = rows.next()? {
            let (partition_id, queue): (i64, String) = (row.get(0)?, row.get(1)?);
            if filter.queue.as_ref().is_none_or(|wanted| *wanted == queue) {
                sources.extend((0..=9).map(|rank| Source::Ready { partition_id, rank }));
            }
        }
        sources.extend([Source::Delayed, Source::Paused]);
    }
    if filter.states.iter().any(|state| state.is_active()) {
        sources.push(Source::Active);
    }
    let (below, least) = bounds(filter);
    let mut heads = Vec::with_capacity(sources.len());
    for source in sources {
        let newest = source.newest(db, below)?;
        heads.push(Head {
            source,
            newest: newest.filter(|tid| tid.as_i64() >= least),
            least,
        });
    }
    heads.retain(|head| head.newest.is_some());
    Ok(heads)
}

/// The newest of all heads.
fn next_of(
    heads: &mut [Head],
    db: &Connection,
) -> rusqlite::Result<Option<(Tid, Option<TaskState>)>> {
    let newest = heads.iter_mut().max_by_key(|head| head.newest);
    let Some((head, tid)) = newest.and_then(|head| head.newest.map(|tid| (head, tid))) else {
        return Ok(None);
    };
    let next = head.source.newest(db, tid.as_i64())?;
    head.newest = next.filter(|tid| tid.as_i64() >= head.least);
    Ok(Some((tid, None)))
}

impl Source {
    /// The newest id below another.
    fn newest(self, db: &Connection, below: i64) -> rusqlite::Result<Option<Tid>> {
        let find = |sql: &str, key: &[&dyn rusqlite::ToSql]| {
            db.prepare_cached(sql)?
                .query_row(key, |row| tid_at(row, 0))
                .optional()
        };
        match self {
            Self::Ready { partition_id, rank } => find(
                "SELECT tid FROM ready WHERE partition_id = ?2 AND rank = ?3 AND tid < ?1 ORDER BY tid DESC LIMIT 1",
                &[&below, &partition_id, &rank],
            ),
            Self::Delayed => find(
                "SELECT tid FROM delayed WHERE tid < ?1 ORDER BY tid DESC LIMIT 1",
                &[&below],
            ),
            Self::Paused => find(
                "SELECT tid FROM paused WHERE tid < ?1 ORDER BY tid DESC LIMIT 1",
                &[&below],
            ),
            Self::Active => find(
                "SELECT tid FROM active WHERE tid < ?1 ORDER BY tid DESC LIMIT 1",
                &[&below],
            ),
        }
    }
}
