//! Reclaim of tasks from lost workers.

use raddle_model::{
    AttemptReport, ExitStatus, TaskState, Tid,
    worker_loss::{self, LostTaskOutcome},
};

use super::{
    clock,
    complete::{TaskEnding, end_active, end_attempt, give_back},
    lease::WorkerRow,
    registry::entered,
    tx::{ACTIVE_COLUMNS, ActiveTask, Tx, TxError, active_at, find_active},
};
use raddle_broker::{AttemptId, Reclaimed};

/// Reclaims the tasks of every worker that is dead or whose lease has expired.
pub(super) fn reclaim(tx: &mut Tx<'_>) -> Result<Vec<Reclaimed>, TxError> {
    let workers = entered(tx.db())?;
    let (leases, now) = (tx.leases, tx.machine);
    let is_gone = |worker: &&WorkerRow| !leases.get(**worker).holds(now);
    if workers.iter().any(|worker| is_gone(&worker)) {
        // The workers may be alive and use a new state file, if this one was deleted.
        leases.refresh();
    }
    let gone: Vec<Tid> = workers
        .iter()
        .filter(is_gone)
        .map(|entered| entered.worker)
        .collect();
    leases.prune(&workers, now);
    let mut reclaimed = Vec::new();
    for worker in gone {
        reclaimed.extend(take_from(tx, worker)?);
        end_service(tx, worker, worker_loss::worker_lost(worker))?;
    }
    Ok(reclaimed)
}

/// Takes all tasks from a worker. Those that had started count as lost; the others go back to their
/// queues.
pub(super) fn take_from(tx: &mut Tx<'_>, worker: Tid) -> Result<Vec<Reclaimed>, TxError> {
    let mut reclaimed = Vec::new();
    for active in tasks_of(tx, worker)? {
        let ActiveTask { tid, counters, .. } = active;
        let outcome = match worker_loss::taken_from(
            worker,
            active.state == TaskState::Running,
            counters.attempt,
        ) {
            LostTaskOutcome::Ended(exit) => end_attempt(tx, &active, &report(tx, exit))?,
            LostTaskOutcome::Back(kind, reason) => give_back(tx, &active, kind, &reason)?,
        };
        tx.increment_counter("reclaims")?;
        reclaimed.push(Reclaimed {
            attempt_id: AttemptId {
                tid,
                attempt: counters.attempt,
                owner: worker,
            },
            outcome,
        });
    }
    Ok(reclaimed)
}

/// Returns all tasks of a worker that leaves normally. This is not a loss.
pub(super) fn give_back_all(tx: &mut Tx<'_>, worker: Tid) -> Result<(), TxError> {
    for active in tasks_of(tx, worker)? {
        let (kind, reason) = worker_loss::given_back_by(worker);
        give_back(tx, &active, kind, &reason)?;
    }
    Ok(())
}

/// The tasks that a worker has claimed, without its own task.
fn tasks_of(tx: &Tx<'_>, worker: Tid) -> rusqlite::Result<Vec<ActiveTask>> {
    let sql = [
        "SELECT ",
        ACTIVE_COLUMNS,
        " FROM active WHERE owner = ?1 AND tid != ?1",
    ]
    .concat();
    tx.db()
        .prepare_cached(&sql)?
        .query_map([worker.as_i64()], active_at)?
        .collect()
}

/// Removes a worker from the registry and ends its own task, unless another worker runs that.
pub(super) fn end_service(tx: &mut Tx<'_>, worker: Tid, exit: ExitStatus) -> Result<(), TxError> {
    tx.remove_worker(worker)?;
    let Some(active) = find_active(tx.db(), worker)?.filter(|active| active.owner == worker) else {
        return Ok(());
    };
    let state = worker_loss::state_of_worker(&exit);
    let report = report(tx, exit);
    end_active(
        tx,
        &active,
        &TaskEnding {
            state,
            dead: false,
            report: &report,
        },
    )
}

/// A report for an attempt that cannot report itself.
pub(super) fn report(tx: &Tx<'_>, exit: ExitStatus) -> AttemptReport {
    AttemptReport::bare(exit, clock::timestamp(tx.now))
}
