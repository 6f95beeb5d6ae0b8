//! Tasks that run where they are submitted.

use std::time::Duration;

use raddle_core::{EventKind, State, Tally, WorkerEntry, worker::WorkerInfo};
use rusqlite::params;

use super::{
    bell::Topic,
    reclaim::reclaim,
    registry::{Entry, living},
    schedules::note_expiries,
    submit::{self, Prepared, due, hold_key, insert, key_holder, part_of, submit},
    tx::{Fail, Tx},
};
use crate::{Claim, Fence, Own, Submitted};

/// Stores a task and gives it to a worker of its own, unless another would take it.
pub(super) fn submit_own(
    tx: &mut Tx<'_>,
    task: Prepared,
    worker: &WorkerInfo,
    lease: Duration,
    yields: bool,
) -> Result<Own, Fail> {
    // Where no worker stays, the tasks of those that are gone have no one else to find them.
    reclaim(tx)?;
    let would_take = |entry: &WorkerEntry| entry.would_take(&task.spec);
    if yields && living(tx.db(), tx.leases)?.iter().any(would_take) {
        return Ok(Own { submitted: submit(tx, vec![task])?[0], worker: None, claim: None });
    }
    if let Some(tid) = key_holder(tx, &task)? {
        return Ok(Own { submitted: Submitted::Existing(tid), worker: None, claim: None });
    }
    let (tid, owner) = (tx.next_id(), tx.next_id());
    // Before anything is written: there may be no room for another worker.
    let entry = Entry::new(tx, owner, lease)?;
    let row = submit::Row { tid, part: part_of(tx, &task.spec)?, service: false, task: &task };
    hold_key(tx, &row)?;
    insert(tx, std::slice::from_ref(&row))?;
    note_expiries(tx, &[row])?;
    // A task's own row is its `created` event.
    tx.touch(Topic::Log);
    entry.write(tx, worker, true)?;
    let own = Own { submitted: Submitted::New(tid), worker: Some(owner), claim: None };
    if let Some(at) = due(tx, &task.spec) {
        tx.enqueue_delayed(tid, Tally::default(), at)?;
        return Ok(own);
    }
    if task.spec.has_expired(tid, Tally::default(), tx.now) {
        // The next who looks at it ends it.
        tx.enqueue(tid, Tally::default(), None)?;
        return Ok(own);
    }
    tx.db()
        .prepare_cached(
            "INSERT INTO active (tid, owner, state, claimed_at, ttl, keyed, own, attempt, failures, losses)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, 1, 1, 0, 0)",
        )?
        .execute(params![
            tid.as_i64(),
            owner.as_i64(),
            State::Spawning as u8,
            tx.now,
            task.ttl(),
            task.spec.unique_key.is_some()
        ])?;
    tx.event(tid, EventKind::Spawning, 1, Some(owner), None);
    Ok(Own { claim: Some(Claim { fence: Fence { tid, attempt: 1 }, spec: task.spec }), ..own })
}
