//! The workers that live on the database.

use std::{
    sync::{Arc, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use raddle_core::{
    EventKind, Exit, Spec, State, Target, Tid, WorkerEntry,
    worker::{Beat, WorkerInfo, WorkerStatus},
};
use rusqlite::{Connection, OptionalExtension, params};

use super::{
    Shared, Sqlite, clock, open,
    reclaim::{TAKEOVER_MARGIN_NANOS, end_service, give_back_all, reclaim, take_from},
    submit::{Prepared, Row, insert},
    tx::{Cache, Fail, Tx, tid_at},
    writer::Durability,
};
use crate::{Error, Heart, Pulse, Registry, Result};

/// How long the record of a worker that has left is kept: a day.
const RECORD_KEPT_NANOS: i64 = 86_400_000_000_000;

/// Keeps one worker alive, on a connection that does nothing but that.
struct Pacemaker {
    shared: Arc<Shared>,
    worker: Tid,
    ttl: Duration,
}

/// The connection that leases are renewed on. Beats take the write lock, so that several hearts would wait for each other on
/// connections of their own as well.
pub(super) struct Pacer {
    connection: Connection,
    cache: Cache,
}

#[async_trait]
impl Registry for Sqlite {
    async fn register(&self, info: WorkerInfo, ttl: Duration) -> Result<Tid> {
        self.write(Durability::Process, move |tx| register(tx, &info, ttl)).await
    }

    fn heart(&self, worker: Tid, ttl: Duration) -> Box<dyn Heart> {
        let shared = Arc::clone(&self.shared);
        Box::new(Pacemaker { shared, worker, ttl })
    }

    async fn deregister(&self, worker: Tid, failure: Option<String>) -> Result<()> {
        self.write(Durability::Process, move |tx| {
            let exit = failure.map_or(Exit::Code { code: 0 }, |message| Exit::Lost { message });
            give_back_all(tx, worker)?;
            end_service(tx, worker, exit)
        })
        .await
    }

    async fn workers(&self) -> Result<Vec<WorkerEntry>> {
        let boot = self.shared.boot;
        self.read(move |db| living(db, boot)).await
    }
}

/// The workers that are alive.
pub(super) fn living(db: &Connection, boot: i64) -> Result<Vec<WorkerEntry>, Fail> {
    let rows = db
        .prepare_cached(
            "SELECT tid, info, status, busy, spawned FROM workers WHERE boot = ?1 AND alive_until >= ?2 ORDER BY tid",
        )?
        .query_map(params![boot, clock::machine() - TAKEOVER_MARGIN_NANOS], |row| {
            let info: String = row.get(1)?;
            Ok((tid_at(row, 0)?, info, row.get(2)?, row.get(3)?, row.get::<_, i64>(4)? as u64))
        })?
        .collect::<rusqlite::Result<Vec<_>>>()?;
    rows.into_iter().map(|(tid, info, status, busy, spawned)| entry(tid, &info, status, busy, spawned)).collect()
}

fn entry(tid: Tid, info: &str, status: u8, busy: u32, spawned_count: u64) -> Result<WorkerEntry, Fail> {
    let info: WorkerInfo = serde_json::from_str(info).map_err(|e| Error::Record { tid, reason: e.to_string() })?;
    Ok(WorkerEntry {
        tid,
        status: match status {
            1 => WorkerStatus::Paused,
            2 => WorkerStatus::Draining,
            _ => WorkerStatus::Active,
        },
        load: f64::from(busy) / f64::from(info.concurrency.max(1)),
        spawned_count,
        started_at: clock::timestamp(tid.as_i64()),
        queue: format!("T{tid}.ctrl_in"),
        info,
    })
}

pub(super) fn register(tx: &mut Tx<'_>, info: &WorkerInfo, ttl: Duration) -> Result<Tid, Fail> {
    // Where workers come and go, those that are gone must not have to wait for one that stays.
    reclaim(tx)?;
    let mut spec = Spec::new(Target::Service(info.kind.clone()));
    spec.name = Some(info.name.clone());
    let text = serde_json::to_string(&spec).expect("a spec has only string keys");
    let tid = tx.next_id();
    insert(tx, &[Row { tid, part: 0, service: true, task: &Prepared { spec, text, parent: None } }])?;
    tx.db()
        .prepare_cached(
            "INSERT INTO active (tid, owner, state, claimed_at, pid, ttl, keyed, attempt, failures, losses)
             VALUES (?1, ?1, ?2, ?3, ?4, ?5, 0, 1, 0, 0)",
        )?
        .execute(params![tid.as_i64(), State::Running as u8, tx.now, info.pid, RECORD_KEPT_NANOS])?;
    enter(tx, tid, info, ttl, false)?;
    tx.event(tid, EventKind::Running, 1, Some(tid), None);
    Ok(tid)
}

/// Enters a worker into the registry; `own` if it is there for one task alone.
pub(super) fn enter(tx: &Tx<'_>, tid: Tid, info: &WorkerInfo, ttl: Duration, own: bool) -> rusqlite::Result<()> {
    tx.db()
        .prepare_cached(
            "INSERT INTO workers (tid, info, boot, alive_until, own, status, busy, spawned)
             VALUES (?1, ?2, ?3, ?4, ?5, 0, 0, 0)",
        )?
        .execute(params![
            tid.as_i64(),
            serde_json::to_string(info).expect("worker info has only string keys"),
            tx.boot,
            lease_end(tx, ttl),
            own
        ])?;
    Ok(())
}

fn lease_end(tx: &Tx<'_>, ttl: Duration) -> i64 {
    tx.machine.saturating_add(i64::try_from(ttl.as_nanos()).unwrap_or(i64::MAX))
}

impl Heart for Pacemaker {
    fn beat(&mut self, beat: Beat) -> Result<Pulse> {
        let shared = &self.shared;
        let mut pacer = shared.pacer.lock().unwrap_or_else(PoisonError::into_inner);
        let Pacer { connection, cache } = match &mut *pacer {
            Some(pacer) => pacer,
            none => none.insert(Pacer { connection: open::connection(&shared.path)?, cache: Cache::default() }),
        };
        let lock = shared.lock()?;
        let mut transact = || -> Result<_, Fail> {
            let mut tx = Tx::begin(connection, cache, shared.boot)?;
            let pulse = renew(&mut tx, self.worker, self.ttl, beat)?;
            Ok((pulse, tx.commit()?))
        };
        let outcome = transact().map_err(|fail| shared.fail(fail));
        drop(lock);
        let (pulse, topics) = outcome.inspect_err(|_| *cache = Cache::default())?;
        shared.bell.ring(topics);
        Ok(pulse)
    }
}

fn renew(tx: &mut Tx<'_>, worker: Tid, ttl: Duration, beat: Beat) -> Result<Pulse, Fail> {
    let alive_until: Option<i64> = tx
        .db()
        .prepare_cached("SELECT alive_until FROM workers WHERE tid = ?1")?
        .query_row([worker.as_i64()], |row| row.get(0))
        .optional()?;
    // A lease that has run out is not renewed even when nobody has taken over yet: the runners have given up already.
    let alive = alive_until.is_some_and(|until| until >= tx.machine);
    if alive {
        let status = match beat.status {
            WorkerStatus::Paused => 1,
            WorkerStatus::Draining => 2,
            _ => 0,
        };
        tx.db()
            .prepare_cached("UPDATE workers SET alive_until = ?2, status = ?3, busy = ?4, spawned = ?5 WHERE tid = ?1")?
            .execute(params![worker.as_i64(), lease_end(tx, ttl), status, beat.busy, beat.spawned_count as i64])?;
    } else if alive_until.is_some() {
        let exit = Exit::Lost { message: format!("worker {worker} did not renew its lease in time") };
        take_from(tx, worker, &exit)?;
        end_service(tx, worker, exit)?;
    }
    let reclaimed = reclaim(tx)?;
    Ok(if alive { Pulse::Alive(reclaimed) } else { Pulse::Expired })
}
