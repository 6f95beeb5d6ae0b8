//! Counts of tasks that a worker could claim. A read: overdue tasks are counted in `delayed`, not
//! moved.

use std::time::Duration;

use raddle_model::CapSet;
use rusqlite::{Connection, params};

use crate::{clock, queue_pause::paused_queues, submit::rank, tx::TxError};
use raddle_broker::WaitingRequest;

/// The number of tasks, and when the next becomes due.
pub(crate) fn waiting(
    db: &Connection,
    request: &WaitingRequest,
) -> Result<(u64, Option<Duration>), TxError> {
    let now = clock::wall() as i64;
    let (rank, tid) = request
        .before
        .map_or((i64::MAX, i64::MAX), |(priority, tid)| {
            (rank(priority), tid.as_i64())
        });
    let mut partitions = db.prepare_cached("SELECT id, queue, needs FROM partitions")?;
    let mut ready = db.prepare_cached(
        "SELECT count(*) FROM (SELECT 1 FROM ready WHERE partition_id = ?1 AND (rank, tid) < (?2, ?3) LIMIT ?4)",
    )?;
    let mut due = db.prepare_cached(
        "SELECT count(*) FROM delayed CROSS JOIN tasks ON tasks.tid = delayed.tid
         WHERE tasks.partition_id = ?1 AND (tasks.rank, tasks.tid) < (?2, ?3) AND run_at <= ?4",
    )?;
    let is_any_due: bool = db
        .prepare_cached("SELECT EXISTS (SELECT 1 FROM delayed WHERE run_at <= ?1)")?
        .query_row([now], |row| row.get(0))?;
    let paused = paused_queues(db)?;
    let mut waiting = 0;
    let mut rows = partitions.query([])?;
    while let Some(row) = rows.next()?
        && waiting < u64::from(request.max)
    {
        let (partition_id, queue, needs): (i64, String, String) =
            (row.get(0)?, row.get(1)?, row.get(2)?);
        let fits = request.queues.contains(&queue)
            && !paused.contains(&queue)
            && needs
                .parse::<CapSet>()
                .unwrap_or_default()
                .is_subset(&request.caps);
        if !fits {
            continue;
        }
        waiting += ready.query_row(params![partition_id, rank, tid, request.max], |row| {
            row.get::<_, i64>(0)
        })? as u64;
        if is_any_due {
            waiting += due.query_row(params![partition_id, rank, tid, now], |row| {
                row.get::<_, i64>(0)
            })? as u64;
        }
    }
    let next: Option<i64> = db
        .prepare_cached("SELECT min(run_at) FROM delayed WHERE run_at > ?1")?
        .query_row([now], |row| row.get(0))?;
    let again_in = next.map(|at| Duration::from_nanos(u64::try_from(at - now).unwrap_or(0)));
    Ok((waiting.min(request.max.into()), again_in))
}
