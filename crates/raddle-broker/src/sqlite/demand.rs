//! What waits for workers, and what they have. Looked at in portions: whoever has the database does other things in between.

use raddle_core::Tid;
use rusqlite::{Connection, params};

use super::{
    Sqlite, clock,
    tx::{Fail, tid_at},
};
use crate::{Demand, Result};

/// How many tasks are looked at in one go: some milliseconds.
const PORTION: usize = 1000;

/// How far the look has come: the last task's partition, rank and id among those that are ready, or time and id among those that were delayed.
#[derive(Clone, Copy)]
enum Place {
    Ready(i64, i64, i64),
    Due(i64, i64),
}

impl Sqlite {
    pub(super) async fn look_at_demand(&self) -> Result<Demand> {
        let mut demand = self.read(counts).await?;
        let mut place = Some(Place::Ready(i64::MIN, i64::MIN, i64::MIN));
        while let Some(from) = place {
            (demand, place) = self.read(move |db| portion(db, demand, from)).await?;
        }
        Ok(demand)
    }
}

fn counts(db: &Connection) -> Result<Demand, Fail> {
    let now = clock::wall() as i64;
    let one = |sql: &str| db.prepare_cached(sql)?.query_row([], |row| row.get::<_, i64>(0)).map(|n| n as u64);
    let meta = |key: &str| {
        let mut query = db.prepare_cached("SELECT coalesce(sum(value), 0) FROM meta WHERE key = ?1")?;
        query.query_row([key], |row| row.get::<_, i64>(0)).map(|n| n as u64)
    };
    let mut delayed = db.prepare_cached("SELECT count(*) FROM delayed WHERE run_at > ?1")?;
    Ok(Demand {
        delayed: delayed.query_row([now], |row| row.get::<_, i64>(0))? as u64,
        paused: one("SELECT count(*) FROM held")?,
        active: one("SELECT count(*) FROM active WHERE tid != owner")?,
        dead: one("SELECT count(*) FROM done WHERE dead = 1")?,
        reclaims: meta("reclaims")?,
        stale_writes: meta("stale_writes")?,
        ..Demand::default()
    })
}

/// Adds the next tasks, and says where to go on.
fn portion(db: &Connection, mut demand: Demand, from: Place) -> Result<(Demand, Option<Place>), Fail> {
    let (mut seen, mut last) = (0, from);
    match from {
        Place::Ready(part, rank, tid) => {
            let mut query = db.prepare_cached(
                "SELECT ready.part, ready.rank, ready.tid, spec FROM ready CROSS JOIN tasks ON tasks.tid = ready.tid
                 WHERE (ready.part, ready.rank, ready.tid) > (?1, ?2, ?3) ORDER BY ready.part, ready.rank, ready.tid LIMIT ?4",
            )?;
            let mut rows = query.query(params![part, rank, tid, PORTION as i64])?;
            while let Some(row) = rows.next()? {
                let tid: Tid = tid_at(row, 2)?;
                demand.add_written(tid, row.get_ref(3)?.as_str().unwrap_or_default(), None);
                (seen, last) = (seen + 1, Place::Ready(row.get(0)?, row.get(1)?, tid.as_i64()));
            }
        }
        Place::Due(run_at, tid) => {
            let mut query = db.prepare_cached(
                "SELECT run_at, delayed.tid, spec FROM delayed CROSS JOIN tasks ON tasks.tid = delayed.tid
                 WHERE run_at <= ?1 AND (run_at, delayed.tid) > (?2, ?3) ORDER BY run_at, delayed.tid LIMIT ?4",
            )?;
            let mut rows = query.query(params![clock::wall() as i64, run_at, tid, PORTION as i64])?;
            while let Some(row) = rows.next()? {
                let (run_at, tid): (i64, Tid) = (row.get(0)?, tid_at(row, 1)?);
                let due = Some(clock::timestamp(run_at));
                demand.add_written(tid, row.get_ref(2)?.as_str().unwrap_or_default(), due);
                (seen, last) = (seen + 1, Place::Due(run_at, tid.as_i64()));
            }
        }
    }
    let next = match last {
        _ if seen == PORTION => Some(last),
        Place::Ready(..) => Some(Place::Due(i64::MIN, i64::MIN)),
        Place::Due(..) => None,
    };
    Ok((demand, next))
}
