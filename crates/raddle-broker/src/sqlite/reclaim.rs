//! Taking back what belongs to workers that are gone.

use raddle_core::{
    Exit, Report, State, Tid,
    departure::{self, Behind},
};

use super::{
    clock,
    finish::{Ending, end_active, end_attempt, give_back},
    leases::Entered,
    registry::entered,
    tx::{ACTIVE_COLUMNS, Active, Fail, Tx, active_at, find_active},
};
use crate::{Fence, Reclaimed};

/// Takes back the tasks of every worker that is dead, or whose lease has run out.
pub(super) fn reclaim(tx: &mut Tx<'_>) -> Result<Vec<Reclaimed>, Fail> {
    let workers = entered(tx.db())?;
    let (leases, now) = (tx.leases, tx.machine);
    let is_gone = |worker: &&Entered| !leases.of(**worker).holds(now);
    if workers.iter().any(|worker| is_gone(&worker)) {
        // The file may be gone instead, and they live on in another.
        leases.refresh();
    }
    let gone: Vec<Tid> = workers.iter().filter(is_gone).map(|entered| entered.worker).collect();
    leases.prune(&workers, now);
    let mut reclaimed = Vec::new();
    for worker in gone {
        reclaimed.extend(take_from(tx, worker)?);
        end_service(tx, worker, departure::gone(worker))?;
    }
    Ok(reclaimed)
}

/// Takes every task from a worker. Those that had begun count as lost; the others were only waiting there.
pub(super) fn take_from(tx: &mut Tx<'_>, worker: Tid) -> Result<Vec<Reclaimed>, Fail> {
    let mut reclaimed = Vec::new();
    for active in tasks_of(tx, worker)? {
        let Active { tid, tally, .. } = active;
        let verdict = match departure::taken_from(worker, active.state == State::Running, tally.attempt) {
            Behind::Ended(exit) => end_attempt(tx, &active, &report(tx, exit))?,
            Behind::Back(kind, reason) => give_back(tx, &active, kind, &reason)?,
        };
        tx.count("reclaims")?;
        reclaimed.push(Reclaimed { fence: Fence { tid, attempt: tally.attempt, owner: worker }, verdict });
    }
    Ok(reclaimed)
}

/// Puts everything back that a worker has which leaves in good order: that is no loss.
pub(super) fn give_back_all(tx: &mut Tx<'_>, worker: Tid) -> Result<(), Fail> {
    for active in tasks_of(tx, worker)? {
        let (kind, reason) = departure::given_back_by(worker);
        give_back(tx, &active, kind, &reason)?;
    }
    Ok(())
}

/// The tasks that a worker has, itself not counted.
fn tasks_of(tx: &Tx<'_>, worker: Tid) -> rusqlite::Result<Vec<Active>> {
    let sql = ["SELECT ", ACTIVE_COLUMNS, " FROM active WHERE owner = ?1 AND tid != ?1"].concat();
    tx.db().prepare_cached(&sql)?.query_map([worker.as_i64()], active_at)?.collect()
}

/// Ends the task that a worker itself is, and its entry in the registry.
pub(super) fn end_service(tx: &mut Tx<'_>, worker: Tid, exit: Exit) -> Result<(), Fail> {
    tx.depart(worker)?;
    let Some(active) = find_active(tx.db(), worker)? else {
        return Ok(());
    };
    let state = departure::state_of_worker(&exit);
    let report = report(tx, exit);
    end_active(tx, &active, &Ending { state, dead: false, report: &report })
}

/// The account of an attempt that cannot give its own.
pub(super) fn report(tx: &Tx<'_>, exit: Exit) -> Report {
    Report::bare(exit, clock::timestamp(tx.now))
}
