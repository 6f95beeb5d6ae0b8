//! Operations: actions on many tasks, in portions. The transaction that changes the tasks of a
//! portion also moves the cursor, so a killed process neither loses nor repeats an action.

use std::path::Path;

use async_trait::async_trait;
use jiff::Timestamp;
use raddle_model::{ControlCommand, ControlMessage, TaskEventKind, Tid};
use rusqlite::{Connection, OptionalExtension, params};

use super::{
    Sqlite, clock, control, purge,
    query::find_fitting,
    submit,
    tx::{Tx, TxError},
    writer::Durability,
};
use raddle_broker::{
    Error, Operations, Result, TaskFilter, TaskPage, Tasks,
    operations::{
        NewOperation, OPERATIONS_KEPT, OperationAction, OperationState, OperationStep,
        OperationView, changes_state,
    },
};

/// The most tasks of one transaction, so that other writes do not wait long.
const PORTION: u32 = 100;

#[async_trait]
impl Operations for Sqlite {
    async fn start_operation(&self, operation: NewOperation) -> Result<Tid> {
        operation.validate()?;
        self.write(Durability::Power, move |tx| {
            let view = OperationView::new(tx.next_id(), operation);
            store(tx, &view)?;
            Ok(view.id)
        })
        .await
    }

    async fn operations(&self, id: Option<Tid>, max: u32) -> Result<Vec<OperationView>> {
        self.read(move |db| {
            let views = db
                .prepare_cached(
                    "SELECT id, record FROM operations WHERE id = coalesce(?1, id) ORDER BY id DESC LIMIT ?2",
                )?
                .query_map(params![id.map(Tid::as_i64), max], view_at)?
                .collect::<rusqlite::Result<Vec<_>>>()?;
            Ok(views)
        })
        .await
    }

    async fn advance_operation(&self, id: Tid, max: u32) -> Result<OperationView> {
        let mut view = self.read(move |db| load(db, id)).await?;
        let mut left = max;
        while left > 0 && view.state == OperationState::Running {
            let page = self.find_tasks(view.filter(left.min(PORTION))).await?;
            left = left.saturating_sub(u32::try_from(page.looked_at).unwrap_or(left).max(1));
            let directory = self.shared.output_directory();
            view = self
                .write(Durability::Power, move |tx| {
                    apply_portion(tx, &directory, &view, &page)
                })
                .await?;
        }
        Ok(view)
    }

    async fn cancel_operation(&self, id: Tid) -> Result<OperationView> {
        self.write(Durability::Power, move |tx| {
            let mut view = load(tx.db(), id)?;
            if view.state == OperationState::Running {
                view.state = OperationState::Cancelled;
                view.updated_at = clock::timestamp(tx.now);
                store(tx, &view)?;
            }
            Ok(view)
        })
        .await
    }
}

fn view_at(row: &rusqlite::Row<'_>) -> rusqlite::Result<OperationView> {
    let text: String = row.get(1)?;
    serde_json::from_str(&text).map_err(|error| {
        rusqlite::Error::FromSqlConversionFailure(1, rusqlite::types::Type::Text, Box::new(error))
    })
}

fn load(db: &Connection, id: Tid) -> Result<OperationView, TxError> {
    db.prepare_cached("SELECT id, record FROM operations WHERE id = ?1")?
        .query_row([id.as_i64()], view_at)
        .optional()?
        .ok_or_else(|| Error::NoOperation(id).into())
}

fn store(tx: &Tx<'_>, view: &OperationView) -> rusqlite::Result<()> {
    let text = serde_json::to_string(view).expect("an operation has only string keys");
    let is_running = view.state == OperationState::Running;
    tx.db()
        .prepare_cached(
            "INSERT OR REPLACE INTO operations (id, is_running, record) VALUES (?1, ?2, ?3)",
        )?
        .execute(params![view.id.as_i64(), is_running, text])?;
    Ok(())
}

/// Applies the action to the tasks of a page that was found from `seen` on, unless another process
/// has done so.
fn apply_portion(
    tx: &mut Tx<'_>,
    directory: &Path,
    seen: &OperationView,
    page: &TaskPage,
) -> Result<OperationView, TxError> {
    let mut view = load(tx.db(), seen.id)?;
    let is_first = (view.cursor, view.looked_at) == (seen.cursor, seen.looked_at);
    if view.state != OperationState::Running || !is_first {
        return Ok(view);
    }
    let now = clock::timestamp(tx.now);
    if let Some(filter) = view.filter(u32::MAX).resolve(now) {
        for task in &page.tasks {
            view.count(apply(tx, directory, &view, &filter, task.tid)?);
        }
    }
    advance(&mut view, page, now);
    store(tx, &view)?;
    Ok(view)
}

fn advance(view: &mut OperationView, page: &TaskPage, now: Timestamp) {
    view.advance(page.looked_at, page.next, now);
}

/// Applies the action to one task.
fn apply(
    tx: &mut Tx<'_>,
    directory: &Path,
    view: &OperationView,
    filter: &TaskFilter,
    tid: Tid,
) -> Result<OperationStep, TxError> {
    let Some(task) = find_fitting(tx.db(), filter, tid)? else {
        return Ok(OperationStep::Changed);
    };
    if last_change(tx.db(), tid)?.is_some_and(|last| last > view.request.as_of.as_i64()) {
        return Ok(OperationStep::Changed);
    }
    let applied = match &view.request.action {
        OperationAction::Retry => submit::resubmit(tx, tid, task.dead).map(drop),
        OperationAction::Stop => command(tx, tid, ControlCommand::Stop),
        OperationAction::Kill => command(tx, tid, ControlCommand::Kill),
        OperationAction::Delete if task.state.is_terminal() => {
            purge::remove(tx, directory, tid)?;
            Ok(())
        }
        OperationAction::Move { queue } => submit::move_to_queue(tx, task, queue),
        _ => {
            let reason = format!(
                "task {tid} is {}: it cannot be deleted before its end",
                task.state
            );
            return Ok(OperationStep::Refused(reason));
        }
    };
    match applied {
        Ok(()) => Ok(OperationStep::Done),
        Err(TxError::Caller(error)) => Ok(OperationStep::Refused(error.to_string())),
        Err(fail) => Err(fail),
    }
}

fn command(tx: &mut Tx<'_>, tid: Tid, command: ControlCommand) -> Result<(), TxError> {
    control::control(tx, tid, &ControlMessage::new(command)).map(drop)
}

/// The last event that changed the state of a task. It has none before its first attempt.
fn last_change(db: &Connection, tid: Tid) -> rusqlite::Result<Option<i64>> {
    let mut events =
        db.prepare_cached("SELECT id, kind FROM events WHERE tid = ?1 ORDER BY id DESC")?;
    let mut rows = events.query([tid.as_i64()])?;
    while let Some(row) = rows.next()? {
        if TaskEventKind::from_u8(row.get(1)?).is_none_or(changes_state) {
            return row.get(0).map(Some);
        }
    }
    Ok(None)
}

/// Deletes the records of old operations.
pub(super) fn purge(tx: &Tx<'_>) -> rusqlite::Result<()> {
    tx.db()
        .prepare_cached(
            "DELETE FROM operations WHERE is_running = 0 AND id <= (SELECT id FROM operations ORDER BY id DESC LIMIT 1 OFFSET ?1)",
        )?
        .execute([OPERATIONS_KEPT])?;
    Ok(())
}
