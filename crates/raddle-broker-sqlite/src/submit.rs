//! Submission.

use std::sync::LazyLock;

use raddle_model::{AttemptCounters, TaskSpec, TaskView, Tid, spec::StartTime, time};
use rusqlite::{Connection, OptionalExtension, params};

use super::{
    bulk_insert::BulkStatement,
    complete::remove_dead_letter,
    counts::Counter,
    notify::Topic,
    query::view,
    schedule::store_expiries,
    tx::{Partition, Tx, TxError, WaitingLocation, find_waiting},
};
use raddle_broker::{Error, NewTask, Submitted, engine::serialize_spec, rollups::OutcomeEvent};

/// A validated and serialised task, ready for the writer thread.
pub(super) struct PreparedTask {
    pub(super) spec: TaskSpec,
    pub(super) text: String,
    pub(super) parent: Option<Tid>,
}

impl PreparedTask {
    /// The retention of its record, in nanoseconds.
    pub(super) fn ttl(&self) -> i64 {
        i64::try_from(self.spec.result_ttl().0.as_nanos()).unwrap_or(i64::MAX)
    }
}

/// Validates and serialises a task before a transaction is begun for it.
pub(super) fn prepare(submit: NewTask) -> Result<PreparedTask, Error> {
    let text = serialize_spec(&submit.spec)?;
    Ok(PreparedTask {
        spec: submit.spec,
        text,
        parent: submit.parent,
    })
}

pub(super) fn submit(tx: &mut Tx<'_>, batch: Vec<PreparedTask>) -> Result<Vec<Submitted>, TxError> {
    let mut stored = Vec::with_capacity(batch.len());
    let mut rows = Vec::with_capacity(batch.len());
    for task in &batch {
        if let Some(tid) = find_key_holder(tx, task)? {
            stored.push(Submitted::Existing(tid));
            continue;
        }
        let row = TaskRow {
            tid: tx.next_id(),
            partition_id: partition_id(tx, &task.spec)?,
            service: false,
            task,
        };
        store_key(tx, &row)?;
        join_batch(tx, &row)?;
        stored.push(Submitted::New(row.tid));
        rows.push(row);
    }
    insert(tx, &rows)?;
    store_expiries(tx, &rows)?;
    let mut ready = None;
    for TaskRow {
        tid,
        partition_id,
        task,
        ..
    } in &rows
    {
        tx.count_outcome(task.spec.display_name(), OutcomeEvent::Submitted);
        match due(tx, &task.spec) {
            // A delayed task interrupts the run of ready ones.
            Some(at) => {
                enqueue_run(tx, ready.take())?;
                tx.enqueue_delayed(*tid, *partition_id, AttemptCounters::default(), at)?;
            }
            None => {
                tx.count(*partition_id, Counter::Ready, 1);
                ready = Some((ready.map_or(*tid, |(first, _)| first), *tid));
            }
        }
    }
    enqueue_run(tx, ready)?;
    // The row of a task is also its `created` event.
    tx.notify(Topic::Log);
    Ok(stored)
}

/// The unfinished task that holds this task's unique key.
pub(super) fn find_key_holder(tx: &Tx<'_>, task: &PreparedTask) -> rusqlite::Result<Option<Tid>> {
    let Some(key) = &task.spec.unique_key else {
        return Ok(None);
    };
    tx.db()
        .prepare_cached("SELECT tid FROM unique_keys WHERE key = ?1")?
        .query_row([key], |row| super::tx::tid_at(row, 0))
        .optional()
}

/// Stores the unique key of a task.
fn store_key(tx: &Tx<'_>, row: &TaskRow<'_>) -> rusqlite::Result<()> {
    if let Some(key) = &row.task.spec.unique_key {
        tx.db()
            .prepare_cached("INSERT INTO unique_keys (key, tid) VALUES (?1, ?2)")?
            .execute(params![key, row.tid.as_i64()])?;
    }
    Ok(())
}

/// Submits the spec of a finished task again. With `dead`, it must be a dead letter.
pub(super) fn resubmit(tx: &mut Tx<'_>, tid: Tid, dead: bool) -> Result<Tid, TxError> {
    let old = view(tx.db(), tid)?.ok_or(Error::NotFound(tid))?;
    let prepared = prepare(NewTask::resubmit(old.clone(), dead)?)?;
    let again = submit(tx, vec![prepared])?[0].into_resubmitted(tid)?;
    remove_dead_letter(tx, tid)?;
    leave_batch(tx.db(), &old.spec, tid)?;
    Ok(again)
}

/// Moves a waiting task to another queue. This is the one change that is made to a stored spec.
pub(super) fn move_to_queue(tx: &mut Tx<'_>, task: TaskView, queue: &str) -> Result<(), TxError> {
    let (tid, mut spec) = (task.tid, task.spec);
    let Some(waiting) = find_waiting(tx.db(), tid)? else {
        return Err(Error::NotWaiting(tid, task.state).into());
    };
    if spec.queue == queue {
        return Ok(());
    }
    spec.queue = queue.to_owned();
    let text = serialize_spec(&spec).map_err(Error::from)?;
    let partition_id = partition_id(tx, &spec)?;
    tx.dequeue(tid, waiting.partition_id, waiting.location)?;
    tx.db()
        .prepare_cached("UPDATE tasks SET partition_id = ?2, spec = ?3 WHERE tid = ?1")?
        .execute(params![tid.as_i64(), partition_id, text])?;
    match waiting.location {
        WaitingLocation::Paused => tx.hold(tid, partition_id, waiting.counters, waiting.run_at)?,
        _ => tx.enqueue(tid, partition_id, waiting.counters, waiting.run_at)?,
    }
    Ok(())
}

/// Adds a task to its batch.
fn join_batch(tx: &Tx<'_>, row: &TaskRow<'_>) -> rusqlite::Result<()> {
    if let Some(batch) = &row.task.spec.batch {
        tx.db()
            .prepare_cached("INSERT INTO batches (batch, tid) VALUES (?1, ?2)")?
            .execute(params![batch, row.tid.as_i64()])?;
    }
    Ok(())
}

/// Removes a task from its batch.
pub(super) fn leave_batch(db: &Connection, spec: &TaskSpec, tid: Tid) -> rusqlite::Result<()> {
    if let Some(batch) = &spec.batch {
        db.prepare_cached("DELETE FROM batches WHERE batch = ?1 AND tid = ?2")?
            .execute(params![batch, tid.as_i64()])?;
    }
    Ok(())
}

/// The immutable part of a task.
pub(super) struct TaskRow<'a> {
    pub(super) tid: Tid,
    pub(super) partition_id: i64,
    pub(super) service: bool,
    pub(super) task: &'a PreparedTask,
}

static INSERT_TASKS: LazyLock<BulkStatement> = LazyLock::new(|| {
    BulkStatement::insert(
        "tasks (tid, partition_id, rank, service, parent, ttl, has_unique_key, spec)",
        8,
    )
});

/// The sort key of a priority: lower ranks are claimed first.
pub(super) fn rank(priority: u8) -> i64 {
    i64::from(9 - priority.min(9))
}

pub(super) fn insert(tx: &Tx<'_>, rows: &[TaskRow<'_>]) -> rusqlite::Result<()> {
    INSERT_TASKS.write(tx.db(), rows, |values, row| {
        let PreparedTask { spec, text, parent } = row.task;
        values.bind(row.tid.as_i64())?;
        values.bind(row.partition_id)?;
        values.bind(rank(spec.priority))?;
        values.bind(row.service)?;
        values.bind(parent.map(Tid::as_i64))?;
        values.bind(row.task.ttl())?;
        values.bind(spec.unique_key.is_some())?;
        values.bind(text.as_str())
    })
}

/// When a task may start, unless that is now.
fn due(tx: &Tx<'_>, spec: &TaskSpec) -> Option<i64> {
    let at = match spec.start()? {
        StartTime::After(delay) => time::nanos_after(tx.now, delay),
        StartTime::At(at) => time::unix_nanos(at),
    };
    (at > tx.now).then_some(at)
}

/// Makes a run of tasks ready with one statement. No other process writes meanwhile, so all ids
/// between the ends belong to the run.
fn enqueue_run(tx: &mut Tx<'_>, run: Option<(Tid, Tid)>) -> rusqlite::Result<()> {
    let Some((first, last)) = run else {
        return Ok(());
    };
    tx.notify(Topic::Ready);
    tx.db()
        .prepare_cached(
            "INSERT OR ROLLBACK INTO ready (partition_id, rank, tid, attempt, failures, losses, ttl, has_unique_key)
             SELECT partition_id, rank, tid, 0, 0, 0, ttl, has_unique_key FROM tasks WHERE tid BETWEEN ?1 AND ?2",
        )?
        .execute([first.as_i64(), last.as_i64()])?;
    Ok(())
}

/// The partition for a queue and a set of needs, created if it is new.
fn partition_id(tx: &mut Tx<'_>, spec: &TaskSpec) -> rusqlite::Result<i64> {
    let (queue, needs) = (&spec.queue, spec.needs());
    let known = |tx: &Tx<'_>| {
        let partition = tx
            .cache
            .partitions
            .iter()
            .find(|partition| partition.queue == *queue && partition.needs == needs);
        partition.map(|partition| partition.id)
    };
    if let Some(id) = known(tx) {
        return Ok(id);
    }
    refresh_parts(tx)?;
    if let Some(id) = known(tx) {
        return Ok(id);
    }
    let id = tx
        .db()
        .prepare_cached("INSERT INTO partitions (queue, needs) VALUES (?1, ?2) RETURNING id")?
        .query_row(params![queue, needs.to_string()], |row| row.get(0))?;
    tx.db()
        .prepare_cached("INSERT INTO counts (partition_id) VALUES (?1)")?
        .execute([id])?;
    tx.cache.partitions.push(Partition {
        id,
        queue: queue.clone(),
        needs,
    });
    Ok(id)
}

/// Loads partitions that other processes have created. They are never deleted, so those with higher
/// ids are new.
pub(super) fn refresh_parts(tx: &mut Tx<'_>) -> rusqlite::Result<()> {
    let known = tx
        .cache
        .partitions
        .last()
        .map_or(0, |partition| partition.id);
    let fresh: Vec<Partition> = tx
        .db()
        .prepare_cached("SELECT id, queue, needs FROM partitions WHERE id > ?1 ORDER BY id")?
        .query_map([known], |row| {
            let needs: String = row.get(2)?;
            Ok(Partition {
                id: row.get(0)?,
                queue: row.get(1)?,
                needs: needs.parse().unwrap_or_default(),
            })
        })?
        .collect::<rusqlite::Result<_>>()?;
    tx.cache.partitions.extend(fresh);
    Ok(())
}
