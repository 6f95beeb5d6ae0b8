//! Tasks in.

use raddle_core::{CapSet, Spec, Tally, Tid, spec::MAX_SPEC_BYTES};
use rusqlite::{OptionalExtension, params};

use super::{
    bell::Topic,
    clock,
    tx::{Fail, Part, Tx},
};
use crate::{Error, Submit, Submitted};

/// A task that has been checked and written out, ready for the writer's thread.
pub(super) struct Prepared {
    pub(super) spec: Spec,
    pub(super) text: String,
    pub(super) parent: Option<Tid>,
}

/// Checks a task before it costs anybody a transaction.
pub(super) fn prepare(submit: Submit) -> Result<Prepared, Error> {
    submit.spec.validate()?;
    let text = serde_json::to_string(&submit.spec).expect("a spec has only string keys");
    if text.len() > MAX_SPEC_BYTES {
        let reason = "the whole spec is larger than 16 MiB: let the task read a file instead".into();
        return Err(raddle_core::spec::InvalidSpec { path: ".", reason }.into());
    }
    Ok(Prepared { spec: submit.spec, text, parent: submit.parent })
}

pub(super) fn submit(tx: &mut Tx<'_>, batch: Vec<Prepared>) -> Result<Vec<Submitted>, Fail> {
    let mut stored = Vec::with_capacity(batch.len());
    for task in batch {
        stored.push(submit_one(tx, task)?);
    }
    Ok(stored)
}

fn submit_one(tx: &mut Tx<'_>, task: Prepared) -> Result<Submitted, Fail> {
    if let Some(key) = &task.spec.unique_key {
        let holder = tx
            .db()
            .prepare_cached("SELECT tid FROM uniques WHERE key = ?1")?
            .query_row([key], |row| super::tx::tid_at(row, 0))
            .optional()?;
        if let Some(tid) = holder {
            return Ok(Submitted::Existing(tid));
        }
    }
    Ok(Submitted::New(insert(tx, &task)?))
}

/// Stores a task and puts it where it waits.
pub(super) fn insert(tx: &mut Tx<'_>, task: &Prepared) -> Result<Tid, Fail> {
    let tid = tx.next_id();
    let spec = &task.spec;
    let part = part_of(tx, &spec.queue, spec.needs())?;
    let rank = 9 - spec.priority.min(9);
    insert_row(tx, tid, part, rank, false, task)?;
    if let Some(key) = &spec.unique_key {
        tx.db()
            .prepare_cached("INSERT INTO uniques (key, tid) VALUES (?1, ?2)")?
            .execute(params![key, tid.as_i64()])?;
    }
    // The task's own row is its `created` event.
    tx.touch(Topic::Log);
    let after = spec.delay.map(|delay| tx.now.saturating_add(i64::try_from(delay.0.as_nanos()).unwrap_or(i64::MAX)));
    match after.or(spec.run_at.map(clock::nanos)).filter(|at| *at > tx.now) {
        Some(at) => tx.enqueue_delayed(tid, Tally::default(), at)?,
        None => tx.enqueue_ready(tid, Tally::default(), part, rank)?,
    }
    Ok(tid)
}

/// Stores the part of a task that never changes.
pub(super) fn insert_row(
    tx: &Tx<'_>,
    tid: Tid,
    part: i64,
    rank: u8,
    service: bool,
    task: &Prepared,
) -> rusqlite::Result<()> {
    tx.db()
        .prepare_cached("INSERT INTO tasks (tid, part, rank, service, parent, spec) VALUES (?1, ?2, ?3, ?4, ?5, ?6)")?
        .execute(params![tid.as_i64(), part, rank, service, task.parent.map(Tid::as_i64), task.text])?;
    Ok(())
}

/// The partition for a queue and a set of needs, made when it is new.
fn part_of(tx: &mut Tx<'_>, queue: &str, needs: CapSet) -> rusqlite::Result<i64> {
    if let Some(part) = tx.cache.parts.iter().find(|part| part.queue == queue && part.needs == needs) {
        return Ok(part.id);
    }
    let text = needs.to_string();
    tx.db()
        .prepare_cached("INSERT INTO parts (queue, needs) VALUES (?1, ?2) ON CONFLICT DO NOTHING")?
        .execute(params![queue, text])?;
    let id = tx
        .db()
        .prepare_cached("SELECT id FROM parts WHERE queue = ?1 AND needs = ?2")?
        .query_row(params![queue, text], |row| row.get(0))?;
    refresh_parts(tx)?;
    Ok(id)
}

/// Learns of the partitions that other processes have made. They are never removed, so the highest number tells.
pub(super) fn refresh_parts(tx: &mut Tx<'_>) -> rusqlite::Result<()> {
    let known = tx.cache.parts.last().map_or(0, |part| part.id);
    let newest: i64 =
        tx.db().prepare_cached("SELECT coalesce(max(id), 0) FROM parts")?.query_row([], |row| row.get(0))?;
    if newest == known {
        return Ok(());
    }
    let fresh: Vec<Part> = tx
        .db()
        .prepare_cached("SELECT id, queue, needs FROM parts WHERE id > ?1 ORDER BY id")?
        .query_map([known], |row| {
            let needs: String = row.get(2)?;
            Ok(Part { id: row.get(0)?, queue: row.get(1)?, needs: needs.parse().unwrap_or_default() })
        })?
        .collect::<rusqlite::Result<_>>()?;
    tx.cache.parts.extend(fresh);
    Ok(())
}
