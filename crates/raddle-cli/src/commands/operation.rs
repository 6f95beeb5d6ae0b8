//! `raddle operation`: actions on many tasks.

use raddle_broker::{
    Error,
    operations::{OperationAction, OperationSelection, OperationState, OperationView},
};

use crate::{
    args::OperationCommand,
    context::Context,
    error::Outcome,
    format,
    table::{Table, labelled},
};

/// The number of tasks that are looked at in one call.
const PORTION: u32 = 1000;

pub(super) async fn operation(context: &Context, command: OperationCommand) -> Outcome {
    let broker = context.open_existing().await?;
    let view = match command {
        OperationCommand::List { limit } => {
            let views = broker.operations(None, limit).await?;
            return context.show(&views, || list(&views));
        }
        OperationCommand::Status { id } => {
            let found = broker.operations(Some(id), 1).await?.pop();
            found.ok_or(Error::NoOperation(id))?
        }
        OperationCommand::Resume { id } => loop {
            let view = broker.advance_operation(id, PORTION).await?;
            if view.state != OperationState::Running {
                break view;
            }
        },
        OperationCommand::Cancel { id } => broker.cancel_operation(id).await?,
    };
    context.show(&view, || describe(&view))
}

fn list(views: &[OperationView]) -> String {
    let mut table = Table::new(&[
        "ID", "STATE", "ACTION", "TASKS", "DONE", "CHANGED", "REFUSED",
    ]);
    for view in views {
        table.row([
            view.id.to_string(),
            state(view.state).into(),
            action(&view.request.action),
            selection(&view.request.selection),
            view.done.to_string(),
            view.changed.to_string(),
            view.refused.to_string(),
        ]);
    }
    table.render()
}

fn describe(view: &OperationView) -> String {
    let request = &view.request;
    let mut lines = vec![
        ("operation", view.id.to_string()),
        ("state", state(view.state).into()),
        ("action", action(&request.action)),
        ("tasks", selection(&request.selection)),
        ("by", request.by.clone()),
        ("reason", request.reason.clone()),
        ("looked at", view.looked_at.to_string()),
        ("done", view.done.to_string()),
        ("changed since", view.changed.to_string()),
        ("refused", view.refused.to_string()),
        ("started", format::time(view.started_at)),
        ("updated", format::time(view.updated_at)),
    ];
    if let Some(expected) = request.expected {
        lines.push(("expected", expected.to_string()));
    }
    if let Some(refusal) = &view.last_refusal {
        lines.push(("last refusal", refusal.clone()));
    }
    lines.retain(|(_, value)| !value.is_empty());
    labelled(&lines)
}

fn state(state: OperationState) -> &'static str {
    match state {
        OperationState::Running => "running",
        OperationState::Completed => "completed",
        OperationState::Cancelled => "cancelled",
    }
}

fn action(action: &OperationAction) -> String {
    match action {
        OperationAction::Retry => "retry".into(),
        OperationAction::Stop => "stop".into(),
        OperationAction::Kill => "kill".into(),
        OperationAction::Delete => "delete".into(),
        OperationAction::Move { queue } => format!("move to {queue}"),
        other => format!("{other:?}"),
    }
}

fn selection(selection: &OperationSelection) -> String {
    match selection {
        OperationSelection::Tasks(tids) => format::count(tids.len() as u64, "task"),
        OperationSelection::Query(query) if query.is_empty() => "all".into(),
        OperationSelection::Query(query) => query.to_string(),
    }
}
