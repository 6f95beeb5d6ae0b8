//! Tasks that run where they are submitted.

use std::time::Duration;

use raddle_core::{
    EventKind, State, Tally, TidClock, WorkerEntry,
    worker::{Beat, WorkerInfo},
};
use rusqlite::params;

use super::{
    bell::Topic,
    clock,
    image::{Image, Row, Value},
    leases::{Leases, end_of},
    reclaim::reclaim,
    registry::{self, Entry, living},
    schedules::note_expiries,
    submit::{self, Prepared, due, hold_key, insert, key_holder, part_of, rank, submit},
    tx::{Fail, LAST_ID, Tx},
};
use crate::{Claim, Error, Fence, Own, Submitted};

/// Stores a task and gives it to a worker of its own, unless another would take it.
pub(super) fn submit_own(
    tx: &mut Tx<'_>,
    task: Prepared,
    worker: &WorkerInfo,
    lease: Duration,
    yields: bool,
) -> Result<Own, Fail> {
    if !tx.is_pristine() {
        // Where nobody stays, those that are gone have nobody else to find them.
        reclaim(tx)?;
    }
    let would_take = |entry: &WorkerEntry| entry.would_take(&task.spec);
    if yields && !tx.is_pristine() && living(tx.db(), tx.leases)?.iter().any(would_take) {
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

const IS_NO_SERVICE: Value<'_> = Value::Number(0);
/// What a worker says of itself later is elsewhere.
const UNSAID: Value<'_> = Value::Number(0);

/// What [`submit_own`] writes to a database in which there is nothing, as that database. `None` for a task that takes more than a row of some tables.
pub(super) fn first(
    task: &Prepared,
    worker: &WorkerInfo,
    lease: Duration,
    leases: &Leases,
) -> Result<Option<(Own, Image)>, Error> {
    let (spec, now) = (&task.spec, clock::wall());
    let mut clock = TidClock::resume(0);
    let [tid, owner, event] = [(); 3].map(|()| clock.next(now));
    if spec.unique_key.is_some() || spec.start().is_some() || spec.expires_at(tid).is_some() {
        return Ok(None);
    }
    let (needs, info) = (spec.needs().to_string(), registry::written(worker));
    let until = end_of(clock::machine(), lease);
    let (queue, needs, part) = (Value::Text(&spec.queue), Value::Text(&needs), 1);
    let (null, ttl, is_keyed, is_paused, is_own) = (Value::Null, task.ttl().into(), 0.into(), 0.into(), 1.into());
    // Of an attempt: its number, and what went wrong before it.
    let [attempt, failures, losses] = [1, 0, 0].map(Value::Number);
    let parent = task.parent.map_or(null, Value::from);
    let claimed_at = Value::Number(now as i64);
    let (spawning, told) = (State::Spawning as i64, EventKind::Spawning as i64);
    #[rustfmt::skip]
    let rows = [
        Row { of: "meta", number: None, values: &[Value::Text(LAST_ID), event.into()] },
        Row { of: "parts", number: Some(part), values: &[null, queue, needs] },
        Row { of: "parts_by_name", number: None, values: &[queue, needs, part.into()] },
        Row { of: "tasks", number: Some(tid.as_i64()), values: &[
            null, part.into(), rank(spec).into(), IS_NO_SERVICE, parent, ttl, is_keyed, Value::Text(&task.text),
        ] },
        Row { of: "active", number: Some(tid.as_i64()), values: &[
            null, owner.into(), spawning.into(), claimed_at, null, ttl, is_keyed, is_paused, is_own,
            attempt, failures, losses, null, null, null,
        ] },
        Row { of: "events", number: Some(event.as_i64()), values: &[
            null, tid.into(), told.into(), attempt, owner.into(), null,
        ] },
        Row { of: "workers", number: Some(owner.as_i64()), values: &[
            null, Value::Text(&info), leases.boot.into(), until.into(), is_own, UNSAID, UNSAID, UNSAID,
        ] },
    ];
    let Some(image) = Image::with(&rows) else { return Ok(None) };
    leases.enter(owner, until, Beat::default())?;
    let claim = Claim { fence: Fence { tid, attempt: 1 }, spec: spec.clone() };
    Ok(Some((Own { submitted: Submitted::New(tid), worker: Some(owner), claim: Some(claim) }, image)))
}
