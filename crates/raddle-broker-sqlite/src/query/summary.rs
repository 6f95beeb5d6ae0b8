//! Counts of tasks. Waiting tasks are scanned for their kinds in portions, so that the writer
//! thread serves other requests in between.

use jiff::Timestamp;
use raddle_model::{TaskState, Tid};
use rusqlite::{Connection, OptionalExtension, params};

use crate::{
    Sqlite, clock, messages as stored_messages,
    queue_pause::paused_queues,
    tx::{TxError, state_at, tid_at},
};
use raddle_broker::{Result, Summary, SummaryDetail};

/// The number of tasks scanned in one read: some milliseconds.
const PORTION: usize = 1000;

/// The position of a scan: the last task's partition, rank and id in `ready`, or time and id in
/// `delayed`.
#[derive(Clone, Copy)]
enum ScanPosition {
    Ready(i64, i64, i64),
    Due(i64, i64),
}

impl Sqlite {
    pub(crate) async fn count_all(&self, detail: SummaryDetail) -> Result<Summary> {
        let SummaryDetail {
            finished,
            kinds,
            messages,
            batches,
            batch,
        } = detail;
        if let Some(batch) = batch {
            return self.read(move |db| batch_states(db, &batch)).await;
        }
        let mut summary = self
            .read(move |db| counts(db, finished, messages, batches))
            .await?;
        let mut place = kinds.then_some(ScanPosition::Ready(i64::MIN, i64::MIN, i64::MIN));
        while let Some(from) = place {
            (summary, place) = self.read(move |db| portion(db, summary, from)).await?;
        }
        Ok(summary)
    }
}

/// The tasks of a batch by state.
fn batch_states(db: &Connection, batch: &str) -> Result<Summary, TxError> {
    let mut summary = Summary::default();
    let mut states = db.prepare_cached(
        "SELECT active.state, count(*) FROM batches CROSS JOIN active ON active.tid = batches.tid WHERE batch = ?1 GROUP BY 1
         UNION ALL
         SELECT finished.state, count(*) FROM batches CROSS JOIN finished ON finished.tid = batches.tid WHERE batch = ?1 GROUP BY 1",
    )?;
    for row in states.query_map([batch], |row| {
        Ok((state_at(row, 0)?, row.get::<_, i64>(1)? as u64))
    })? {
        let (state, tasks) = row?;
        summary.states.insert(state, tasks);
    }
    let all: i64 = db
        .prepare_cached("SELECT count(*) FROM batches WHERE batch = ?1")?
        .query_row([batch], |row| row.get(0))?;
    let waiting = (all as u64).saturating_sub(summary.states.values().sum());
    if waiting > 0 {
        summary.states.insert(TaskState::Created, waiting);
    }
    Ok(summary)
}

/// The final states, in the order in which [`counts`] reads them.
const FINISHED_STATES: [TaskState; 5] = [
    TaskState::Completed,
    TaskState::Failed,
    TaskState::Timeout,
    TaskState::Cancelled,
    TaskState::Killed,
];

/// When the oldest of the ready tasks of a partition was submitted: the oldest of the first tasks
/// of each priority.
fn oldest_ready(db: &Connection, partition_id: i64) -> rusqlite::Result<Option<Timestamp>> {
    let mut first = db.prepare_cached(
        "SELECT rank, tid FROM ready WHERE partition_id = ?1 AND rank > ?2 ORDER BY rank, tid LIMIT 1",
    )?;
    let (mut oldest, mut rank): (Option<i64>, i64) = (None, -1);
    while let Some((next, tid)) = first
        .query_row([partition_id, rank], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?
    {
        rank = next;
        oldest = Some(oldest.map_or(tid, |oldest| oldest.min(tid)));
    }
    Ok(oldest.map(clock::timestamp))
}

fn counts(
    db: &Connection,
    finished: bool,
    messages: bool,
    batches: bool,
) -> Result<Summary, TxError> {
    let meta = |key: &str| {
        db.prepare_cached("SELECT coalesce(sum(value), 0) FROM meta WHERE key = ?1")?
            .query_row([key], |row| row.get::<_, i64>(0))
            .map(|n| n as u64)
    };
    let mut summary = Summary {
        reclaims: meta("reclaims")?,
        stale_writes: meta("stale_writes")?,
        messages: if messages {
            stored_messages::queue_sizes(db)?
        } else {
            Default::default()
        },
        ..Summary::default()
    };
    for queue in paused_queues(db)? {
        summary.queues.entry(queue).or_default().is_paused = true;
    }
    let mut partitions = db.prepare_cached(
        "SELECT queue, ready, delayed, paused, dead, spawning, running, completed, failed, timeout, cancelled, killed, partition_id
         FROM counts JOIN partitions ON partitions.id = partition_id
         WHERE ready + delayed + paused + spawning + running + completed + failed + timeout + cancelled + killed > 0",
    )?;
    let mut rows = partitions.query([])?;
    while let Some(row) = rows.next()? {
        let count = |column| row.get::<_, i64>(column).map(|n| n as u64);
        let queue = summary.queues.entry(row.get(0)?).or_default();
        let ready = count(1)?;
        if ready > 0 {
            let oldest = oldest_ready(db, row.get(12)?)?;
            queue.oldest_ready = [queue.oldest_ready, oldest].into_iter().flatten().min();
        }
        queue.ready += ready;
        queue.delayed += count(2)?;
        queue.paused += count(3)?;
        queue.dead += count(4)?;
        queue.spawning += count(5)?;
        queue.running += count(6)?;
        for (state, column) in FINISHED_STATES.into_iter().zip(7..) {
            let tasks = count(column)?;
            if tasks > 0 {
                *queue.finished.entry(state).or_default() += tasks;
            }
        }
    }
    summary.sum_queues(finished);
    if batches {
        let mut batches =
            db.prepare_cached("SELECT batch, count(*), min(tid) FROM batches GROUP BY batch")?;
        let mut rows = batches.query([])?;
        while let Some(row) = rows.next()? {
            summary.add_batch(row.get(0)?, row.get::<_, i64>(1)? as u64, tid_at(row, 2)?);
        }
    }
    Ok(summary)
}

/// Counts the next tasks, and returns where to go on.
fn portion(
    db: &Connection,
    mut summary: Summary,
    from: ScanPosition,
) -> Result<(Summary, Option<ScanPosition>), TxError> {
    let (mut seen, mut last) = (0, from);
    match from {
        ScanPosition::Ready(partition_id, rank, tid) => {
            let mut query = db.prepare_cached(
                "SELECT ready.partition_id, ready.rank, ready.tid, spec FROM ready CROSS JOIN tasks ON tasks.tid = ready.tid
                 WHERE (ready.partition_id, ready.rank, ready.tid) > (?1, ?2, ?3) ORDER BY ready.partition_id, ready.rank, ready.tid LIMIT ?4",
            )?;
            let mut rows = query.query(params![partition_id, rank, tid, PORTION as i64])?;
            while let Some(row) = rows.next()? {
                let tid: Tid = tid_at(row, 2)?;
                summary.count_kind(tid, row.get_ref(3)?.as_str().unwrap_or_default(), None);
                (seen, last) = (
                    seen + 1,
                    ScanPosition::Ready(row.get(0)?, row.get(1)?, tid.as_i64()),
                );
            }
        }
        ScanPosition::Due(run_at, tid) => {
            let mut query = db.prepare_cached(
                "SELECT run_at, delayed.tid, spec FROM delayed CROSS JOIN tasks ON tasks.tid = delayed.tid
                 WHERE run_at <= ?1 AND (run_at, delayed.tid) > (?2, ?3) ORDER BY run_at, delayed.tid LIMIT ?4",
            )?;
            let mut rows =
                query.query(params![clock::wall() as i64, run_at, tid, PORTION as i64])?;
            while let Some(row) = rows.next()? {
                let (run_at, tid): (i64, Tid) = (row.get(0)?, tid_at(row, 1)?);
                let due = Some(clock::timestamp(run_at));
                summary.count_kind(tid, row.get_ref(2)?.as_str().unwrap_or_default(), due);
                (seen, last) = (seen + 1, ScanPosition::Due(run_at, tid.as_i64()));
            }
        }
    }
    let next = match last {
        _ if seen == PORTION => Some(last),
        ScanPosition::Ready(..) => Some(ScanPosition::Due(i64::MIN, i64::MIN)),
        ScanPosition::Due(..) => None,
    };
    Ok((summary, next))
}
