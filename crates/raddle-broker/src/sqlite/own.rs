//! Tasks that run where they are submitted.

use std::time::Duration;

use raddle_core::{
    EventKind, State, Tally, Tid, TidClock, WorkerEntry,
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
    let number = |tid: Tid| Value::Number(tid.as_i64());
    let (needs, info) = (spec.needs().to_string(), registry::written(worker));
    let until = end_of(clock::machine(), lease);
    let (part, attempt, none) = (Value::Number(1), Value::Number(1), Value::Number(0));
    let (queue, needs, ttl) = (Value::Text(&spec.queue), Value::Text(&needs), Value::Number(task.ttl()));
    let parent = task.parent.map_or(Value::Null, number);
    let (rank, is_own) = (Value::Number(rank(spec)), Value::Number(1));
    let (spawning, told) = (Value::Number(State::Spawning as i64), Value::Number(EventKind::Spawning as i64));
    let of_task = [Value::Null, part, rank, none, parent, ttl, none, Value::Text(&task.text)];
    let claimed =
        [Value::Null, number(owner), spawning, Value::Number(now as i64), Value::Null, ttl, none, none, is_own];
    let tally = [attempt, none, none, Value::Null, Value::Null, Value::Null];
    let of_event = [Value::Null, number(tid), told, attempt, number(owner), Value::Null];
    let (boot, until_value) = (Value::Number(leases.boot), Value::Number(until));
    let of_worker = [Value::Null, Value::Text(&info), boot, until_value, is_own, none, none, none];
    let rows = [
        Row { of: "meta", number: None, values: &[Value::Text(LAST_ID), number(event)] },
        Row { of: "parts", number: Some(1), values: &[Value::Null, queue, needs] },
        Row { of: "parts_by_name", number: None, values: &[queue, needs, part] },
        Row { of: "tasks", number: Some(tid.as_i64()), values: &of_task },
        Row { of: "active", number: Some(tid.as_i64()), values: &[&claimed[..], &tally].concat() },
        Row { of: "events", number: Some(event.as_i64()), values: &of_event },
        Row { of: "workers", number: Some(owner.as_i64()), values: &of_worker },
    ];
    let Some(image) = Image::with(&rows) else { return Ok(None) };
    leases.enter(owner, until, Beat::default())?;
    let claim = Claim { fence: Fence { tid, attempt: 1 }, spec: spec.clone() };
    Ok(Some((Own { submitted: Submitted::New(tid), worker: Some(owner), claim: Some(claim) }, image)))
}
