//! The registry of workers.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use raddle_model::{
    Target, TaskEventKind, TaskSpec, TaskState, Tid, WorkerEntry,
    worker::{Heartbeat, WorkerInfo},
    worker_loss,
};
use rusqlite::{Connection, params};

use super::{
    Sqlite, clock,
    complete::refuse,
    counts::SERVICES,
    lease::{LeaseTable, WorkerRow, end_of},
    reclaim::{end_service, give_back_all, reclaim, take_from},
    submit::{PreparedTask, TaskRow, insert},
    tx::{Tx, TxError, find_attempt, tid_at},
    writer::Durability,
};
use raddle_broker::{AttemptId, Error, Registry, Result, WorkerTask};

/// The retention of a worker's own task record: one day.
const RECORD_KEPT_NANOS: i64 = 86_400_000_000_000;

#[async_trait]
impl Registry for Sqlite {
    async fn register_worker(
        &self,
        info: WorkerInfo,
        ttl: Duration,
        task: WorkerTask,
    ) -> Result<Tid> {
        let registered = self
            .write(Durability::Process, move |tx| match task {
                WorkerTask::New => register(tx, &info, ttl).map(Ok),
                WorkerTask::Ephemeral => {
                    let tid = tx.next_id();
                    enter(tx, tid, &info, ttl, true)?;
                    Ok(Ok(tid))
                }
                WorkerTask::Attempt(attempt_id) => register_attempt(tx, attempt_id, &info, ttl),
            })
            .await?;
        registered.map_err(Error::Superseded)
    }

    async fn deregister(&self, worker: Tid, failure: Option<String>) -> Result<()> {
        self.write(Durability::Process, move |tx| {
            give_back_all(tx, worker)?;
            end_service(tx, worker, worker_loss::worker_left(failure))
        })
        .await
    }

    async fn workers(&self) -> Result<Vec<WorkerEntry>> {
        let shared = Arc::clone(&self.shared);
        self.read(move |db| live_workers(db, &shared.leases)).await
    }
}

/// The live workers.
pub(super) fn live_workers(
    db: &Connection,
    leases: &LeaseTable,
) -> Result<Vec<WorkerEntry>, TxError> {
    let rows = db
        .prepare_cached("SELECT info, tid, boot, alive_until FROM workers ORDER BY tid")?
        .query_map([], |row| Ok((row.get(0)?, worker_row_at(row, 1)?)))?
        .collect::<rusqlite::Result<Vec<(String, WorkerRow)>>>()?;
    let now = clock::machine();
    let leased = rows
        .into_iter()
        .map(|(info, entered)| (info, entered.worker, leases.get(entered)));
    leased
        .filter(|(.., lease)| lease.holds(now))
        .map(|(info, tid, lease)| entry(tid, &info, lease.heartbeat))
        .collect()
}

fn entry(tid: Tid, info: &str, heartbeat: Heartbeat) -> Result<WorkerEntry, TxError> {
    let info: WorkerInfo = serde_json::from_str(info).map_err(|e| Error::Record {
        tid,
        reason: e.to_string(),
    })?;
    Ok(WorkerEntry::new(
        tid,
        info,
        heartbeat,
        clock::timestamp(tid.as_i64()),
    ))
}

/// All registered workers, alive or not.
pub(super) fn entered(db: &Connection) -> rusqlite::Result<Vec<WorkerRow>> {
    let mut query = db.prepare_cached("SELECT tid, boot, alive_until FROM workers")?;
    query.query_map([], |row| worker_row_at(row, 0))?.collect()
}

/// A worker from three columns, starting at `first`.
pub(super) fn worker_row_at(row: &rusqlite::Row<'_>, first: usize) -> rusqlite::Result<WorkerRow> {
    Ok(WorkerRow {
        worker: tid_at(row, first)?,
        boot: row.get(first + 1)?,
        until: row.get(first + 2)?,
    })
}

pub(super) fn register(tx: &mut Tx<'_>, info: &WorkerInfo, ttl: Duration) -> Result<Tid, TxError> {
    // Reclaim now: where only short-lived workers run, no worker stays to do it.
    reclaim(tx)?;
    let mut spec = TaskSpec::new(Target::Service(info.kind.clone()));
    spec.name = Some(info.name.clone());
    let text = serde_json::to_string(&spec).expect("a spec has only string keys");
    let tid = tx.next_id();
    enter(tx, tid, info, ttl, false)?;
    insert(
        tx,
        &[TaskRow {
            tid,
            partition_id: SERVICES,
            service: true,
            task: &PreparedTask {
                spec,
                text,
                parent: info.parent,
            },
        }],
    )?;
    tx.db()
        .prepare_cached(
            "INSERT INTO active (tid, owner, state, claimed_at, pid, partition_id, ttl, has_unique_key, attempt, failures, losses)
             VALUES (?1, ?1, ?2, ?3, ?4, ?6, ?5, 0, 1, 0, 0)",
        )?
        .execute(params![tid.as_i64(), TaskState::Running as u8, tx.now, info.pid, RECORD_KEPT_NANOS, SERVICES])?;
    tx.event(tid, TaskEventKind::Running, 1, Some(tid), None);
    Ok(tid)
}

/// Registers the process of a running attempt as a worker, under the id of its task. An attempt that
/// is not the current one is refused.
fn register_attempt(
    tx: &mut Tx<'_>,
    attempt_id: AttemptId,
    info: &WorkerInfo,
    ttl: Duration,
) -> Result<Result<Tid, AttemptId>, TxError> {
    let AttemptId { tid, owner, .. } = attempt_id;
    if owner == tid || find_attempt(tx.db(), attempt_id)?.is_none() {
        refuse(tx, attempt_id)?;
        return Ok(Err(attempt_id));
    }
    // Its worker ended the processes of the earlier attempt before this one began.
    take_from(tx, tid)?;
    tx.db()
        .prepare_cached("DELETE FROM workers WHERE tid = ?1")?
        .execute([tid.as_i64()])?;
    tx.leases.remove(tid);
    // Another call of this transaction may have removed the earlier worker.
    tx.keep_worker(tid);
    enter(tx, tid, info, ttl, false)?;
    Ok(Ok(tid))
}

/// Gives a worker a lease and adds it to the registry. If the transaction is rolled back, the lease
/// belongs to no worker and [`LeaseTable::prune`] clears it.
pub(super) fn enter(
    tx: &Tx<'_>,
    worker: Tid,
    info: &WorkerInfo,
    ttl: Duration,
    ephemeral: bool,
) -> Result<(), TxError> {
    let until = end_of(tx.machine, ttl);
    // First, because the state file may be full.
    tx.leases.register(worker, until, Heartbeat::default())?;
    let info = serde_json::to_string(info).expect("worker info has only string keys");
    tx.db()
        .prepare_cached(
            "INSERT INTO workers (tid, info, boot, alive_until, ephemeral) VALUES (?1, ?2, ?3, ?4, ?5)",
        )?
        .execute(params![worker.as_i64(), info, tx.leases.boot, until, ephemeral])?;
    Ok(())
}
