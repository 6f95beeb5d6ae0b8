//! Control messages: applied here to waiting tasks, delivered to workers otherwise.

use raddle_model::{
    ControlCommand, ControlMessage, ExitStatus, QueueName, TaskEventKind, TaskState, Tid,
    apply_command::{self, CommandEffect},
    control::ParseControlError,
    queue_name::TaskQueue,
    spec::ReservedPolicy,
};
use rusqlite::params;

use super::{
    claim::spec_of,
    complete::{TaskEnding, end_waiting},
    messages,
    reclaim::report,
    tx::{
        Tx, TxError, WaitingLocation, WaitingTask, command_at, find_active, find_done,
        find_waiting, tid_at,
    },
};
use raddle_broker::{ControlDelivery, DeliveryOutcome, Error};

pub(super) fn control(
    tx: &mut Tx<'_>,
    tid: Tid,
    message: &ControlMessage,
) -> Result<DeliveryOutcome, TxError> {
    if find_active(tx.db(), tid)?.is_some() {
        messages::insert(
            tx,
            &QueueName::Task(tid, TaskQueue::CtrlIn),
            &message.to_text(),
        )?;
        return Ok(DeliveryOutcome::Sent);
    }
    if let Some(state) = find_done(tx.db(), tid)? {
        return Err(Error::Finished(tid, state).into());
    }
    let waiting = find_waiting(tx.db(), tid)?.ok_or(Error::NotFound(tid))?;
    apply_to_waiting(tx, tid, waiting, message).map(DeliveryOutcome::Applied)
}

/// Applies a command to a waiting task and returns its new state.
fn apply_to_waiting(
    tx: &mut Tx<'_>,
    tid: Tid,
    waiting: WaitingTask,
    message: &ControlMessage,
) -> Result<TaskState, TxError> {
    let mut paused = waiting.location == WaitingLocation::Paused;
    match apply_command::apply_command(message, paused, is_requeued_on_stop(tx, tid)?) {
        CommandEffect::End(state, exit) => return end(tx, tid, waiting, state, exit),
        CommandEffect::Hold => {
            paused = true;
            tx.dequeue(tid, waiting.partition_id, waiting.location)?;
            tx.hold(tid, waiting.partition_id, waiting.counters, waiting.run_at)?;
            tx.event(
                tid,
                TaskEventKind::Paused,
                waiting.counters.attempt,
                None,
                None,
            );
        }
        CommandEffect::Free => {
            paused = false;
            tx.dequeue(tid, waiting.partition_id, WaitingLocation::Paused)?;
            tx.enqueue(tid, waiting.partition_id, waiting.counters, waiting.run_at)?;
            tx.event(
                tid,
                TaskEventKind::Resumed,
                waiting.counters.attempt,
                None,
                None,
            );
        }
        CommandEffect::Nothing => {}
    }
    let reply = serde_json::to_string(&apply_command::answer(message, paused))
        .expect("a reply has only string keys");
    messages::insert(tx, &QueueName::Task(tid, TaskQueue::CtrlOut), &reply)?;
    Ok(TaskState::Created)
}

fn end(
    tx: &mut Tx<'_>,
    tid: Tid,
    waiting: WaitingTask,
    state: TaskState,
    exit: ExitStatus,
) -> Result<TaskState, TxError> {
    let report = report(tx, exit);
    end_waiting(
        tx,
        tid,
        waiting,
        &TaskEnding {
            state,
            dead: false,
            report: &report,
        },
    )?;
    Ok(state)
}

/// Whether a stopped task returns to its queue. An unreadable one does not.
fn is_requeued_on_stop(tx: &Tx<'_>, tid: Tid) -> Result<bool, TxError> {
    match spec_of(tx, tid) {
        Ok(spec) => Ok(spec.on_stop == ReservedPolicy::Requeue),
        Err(TxError::Caller(_)) => Ok(false),
        Err(fail) => Err(fail),
    }
}

/// Applies the commands that were meant for the last attempt of a task that waits again: the one
/// that its worker received, and those that are still stored. Returns the final state that they led
/// to, if any.
pub(super) fn apply_pending(
    tx: &mut Tx<'_>,
    tid: Tid,
    pending_command: Option<ControlCommand>,
) -> Result<Option<TaskState>, TxError> {
    if let Some(word) = pending_command
        && let Some(waiting) = find_waiting(tx.db(), tid)?
        && let CommandEffect::End(state, exit) = apply_command::apply_command(
            &ControlMessage::new(word),
            false,
            is_requeued_on_stop(tx, tid)?,
        )
    {
        return end(tx, tid, waiting, state, exit).map(Some);
    }
    for body in messages::drain(tx, &QueueName::Task(tid, TaskQueue::CtrlIn))? {
        let Some(waiting) = find_waiting(tx.db(), tid)? else {
            break;
        };
        match body.parse::<ControlMessage>() {
            Ok(message) => {
                let state = apply_to_waiting(tx, tid, waiting, &message)?;
                if state.is_terminal() {
                    return Ok(Some(state));
                }
            }
            Err(error) => ignore(tx, tid, waiting.counters.attempt, &error),
        }
    }
    Ok(None)
}

/// Takes the control messages for `owner` and for its tasks, but for those that are registered as
/// workers: they receive their own. A command that ends a task is recorded
/// with the task, so that it outlives the worker. A message that is not a control message becomes
/// an event of its task.
pub(super) fn recv_commands(tx: &mut Tx<'_>, owner: Tid) -> Result<Vec<ControlDelivery>, TxError> {
    let held: Vec<(Tid, Option<ControlCommand>, u32)> = tx
        .db()
        .prepare_cached(
            "SELECT tid, pending_command, attempt FROM active
             WHERE ?1 IN (tid, owner) AND (tid = ?1) = (tid IN (SELECT tid FROM workers)) ORDER BY tid",
        )?
        .query_map(params![owner.as_i64()], |row| {
            Ok((tid_at(row, 0)?, command_at(row, 1)?, row.get(2)?))
        })?
        .collect::<rusqlite::Result<_>>()?;
    let mut deliveries = Vec::new();
    for (tid, before, attempt) in held {
        let bodies = messages::drain(tx, &QueueName::Task(tid, TaskQueue::CtrlIn))?;
        let mut pending_command = before;
        for body in &bodies {
            match body.parse() {
                Ok(message) => {
                    pending_command = apply_command::pending_command(pending_command, &message)
                }
                Err(error) => ignore(tx, tid, attempt, &error),
            }
        }
        if pending_command != before {
            tx.db()
                .prepare_cached("UPDATE active SET pending_command = ?2 WHERE tid = ?1")?
                .execute(params![
                    tid.as_i64(),
                    pending_command.map(|word| word.to_string())
                ])?;
        }
        deliveries.extend(bodies.into_iter().map(|body| ControlDelivery { tid, body }));
    }
    Ok(deliveries)
}

/// Logs that a message to a task was not a control message.
fn ignore(tx: &mut Tx<'_>, tid: Tid, attempt: u32, error: &ParseControlError) {
    tx.event(
        tid,
        TaskEventKind::ControlIgnored,
        attempt,
        None,
        Some(&error.to_string()),
    );
}

/// Whether any control message is stored: a cheap check before the expensive one.
pub(super) fn any_pending(db: &rusqlite::Connection) -> rusqlite::Result<bool> {
    db.prepare_cached(ANY_PENDING)?.exists([])
}

const ANY_PENDING: &str = "SELECT 1 FROM messages WHERE queue >= '!' AND queue < '\"' LIMIT 1";
