//! Control words: obeyed here while nobody runs the task, passed on otherwise.

use raddle_core::{
    Control, EventKind, Exit, QueueName, State, Tid, Word,
    control::ParseControlError,
    obey::{self, Effect},
    queue_name::Port,
    spec::Reserved,
};
use rusqlite::params;

use super::{
    claim::spec_of,
    finish::{Ending, end_waiting},
    messages,
    reclaim::report,
    tx::{Fail, Place, Tx, Waiting, find_active, find_done, find_waiting, tid_at, told_at},
};
use crate::{Delivered, Delivery, Error};

pub(super) fn control(tx: &mut Tx<'_>, tid: Tid, message: &Control) -> Result<Delivered, Fail> {
    if find_active(tx.db(), tid)?.is_some() {
        messages::insert(tx, &QueueName::Task(tid, Port::CtrlIn), &message.to_text())?;
        return Ok(Delivered::Sent);
    }
    if let Some(state) = find_done(tx.db(), tid)? {
        return Err(Error::Finished(tid, state).into());
    }
    let waiting = find_waiting(tx.db(), tid)?.ok_or(Error::NotFound(tid))?;
    obey(tx, tid, waiting, message).map(Delivered::Applied)
}

/// Does to a waiting task what the word says; returns its state from then on.
fn obey(tx: &mut Tx<'_>, tid: Tid, waiting: Waiting, message: &Control) -> Result<State, Fail> {
    let mut held = waiting.place == Place::Held;
    match obey::obey(message, held, goes_back(tx, tid)?) {
        Effect::End(state, exit) => return end(tx, tid, waiting, state, exit),
        Effect::Hold => {
            held = true;
            tx.dequeue(tid, waiting.place)?;
            tx.hold(tid, waiting.tally, waiting.run_at)?;
            tx.event(tid, EventKind::Paused, waiting.tally.attempt, None, None);
        }
        Effect::Free => {
            held = false;
            tx.dequeue(tid, Place::Held)?;
            tx.enqueue(tid, waiting.tally, waiting.run_at)?;
            tx.event(tid, EventKind::Resumed, waiting.tally.attempt, None, None);
        }
        Effect::Nothing => {}
    }
    let reply = serde_json::to_string(&obey::answer(message, held)).expect("a reply has only string keys");
    messages::insert(tx, &QueueName::Task(tid, Port::CtrlOut), &reply)?;
    Ok(State::Created)
}

fn end(tx: &mut Tx<'_>, tid: Tid, waiting: Waiting, state: State, exit: Exit) -> Result<State, Fail> {
    let report = report(tx, exit);
    end_waiting(tx, tid, waiting, &Ending { state, dead: false, report: &report })?;
    Ok(state)
}

/// Whether a task that is stopped goes back to its queue. One that nobody can read does not.
fn goes_back(tx: &Tx<'_>, tid: Tid) -> Result<bool, Fail> {
    match spec_of(tx, tid) {
        Ok(spec) => Ok(spec.on_stop == Reserved::Requeue),
        Err(Fail::Caller(_)) => Ok(false),
        Err(fail) => Err(fail),
    }
}

/// Obeys the words that were meant for the last attempt of a task that waits again: the one by which its worker was told to end it, and those that were
/// left for it. Returns the state they led to, if final.
pub(super) fn apply_pending(tx: &mut Tx<'_>, tid: Tid, told: Option<Word>) -> Result<Option<State>, Fail> {
    if let Some(word) = told
        && let Some(waiting) = find_waiting(tx.db(), tid)?
        && let Effect::End(state, exit) = obey::obey(&Control::new(word), false, goes_back(tx, tid)?)
    {
        return end(tx, tid, waiting, state, exit).map(Some);
    }
    for body in messages::drain(tx, &QueueName::Task(tid, Port::CtrlIn))? {
        let Some(waiting) = find_waiting(tx.db(), tid)? else { break };
        match body.parse::<Control>() {
            Ok(message) => {
                let state = obey(tx, tid, waiting, &message)?;
                if state.is_terminal() {
                    return Ok(Some(state));
                }
            }
            Err(error) => ignore(tx, tid, waiting.tally.attempt, &error),
        }
    }
    Ok(None)
}

/// Takes the messages to what `owner` has, itself included. A word that ends a task is noted with it, so that it outlives the worker. A message that is not
/// a control message is an event of its task.
pub(super) fn controls(tx: &mut Tx<'_>, owner: Tid) -> Result<Vec<Delivery>, Fail> {
    let held: Vec<(Tid, Option<Word>, u32)> = tx
        .db()
        .prepare_cached("SELECT tid, told, attempt FROM active WHERE owner = ?1 ORDER BY tid")?
        .query_map(params![owner.as_i64()], |row| Ok((tid_at(row, 0)?, told_at(row, 1)?, row.get(2)?)))?
        .collect::<rusqlite::Result<_>>()?;
    let mut deliveries = Vec::new();
    for (tid, before, attempt) in held {
        let bodies = messages::drain(tx, &QueueName::Task(tid, Port::CtrlIn))?;
        let mut told = before;
        for body in &bodies {
            match body.parse() {
                Ok(message) => told = obey::told(told, &message),
                Err(error) => ignore(tx, tid, attempt, &error),
            }
        }
        if told != before {
            tx.db()
                .prepare_cached("UPDATE active SET told = ?2 WHERE tid = ?1")?
                .execute(params![tid.as_i64(), told.map(|word| word.to_string())])?;
        }
        deliveries.extend(bodies.into_iter().map(|body| Delivery { tid, body }));
    }
    Ok(deliveries)
}

/// Logs that a message to a task was not a control message.
fn ignore(tx: &mut Tx<'_>, tid: Tid, attempt: u32, error: &ParseControlError) {
    tx.event(tid, EventKind::ControlIgnored, attempt, None, Some(&error.to_string()));
}

/// Whether any control message is stored at all: a cheap look before the costly one.
pub(super) fn any_pending(db: &rusqlite::Connection) -> rusqlite::Result<bool> {
    db.prepare_cached(ANY_PENDING)?.exists([])
}

const ANY_PENDING: &str = "SELECT 1 FROM messages WHERE queue >= '!' AND queue < '\"' LIMIT 1";
