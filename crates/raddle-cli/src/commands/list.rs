//! `raddle task list`: a table of tasks.

use jiff::Timestamp;
use raddle_client::text::{note, target_text};
use raddle_model::{TaskQuery, TaskState, TaskView, query::FlagField};
use raddle_view::{
    task::task_record,
    tasks::{TaskListOptions, list_tasks},
};

use crate::{
    args::ListArgs,
    context::Context,
    error::Outcome,
    format, output, select,
    table::{Colour, Table},
};

pub(super) async fn list(context: &Context, args: ListArgs) -> Outcome {
    let query: TaskQuery = args.query.join(" ").parse()?;
    let broker = context.open_existing().await?;
    let mut query = query.and(select::filter_query(&*broker, &args.filter).await?);
    if args.dead {
        query = query.and(TaskQuery::flag(FlagField::Dead, true));
    }
    let options = TaskListOptions {
        limit: args.limit,
        services: args.all,
        // The user can interrupt it.
        max_looked_at: u64::MAX,
        ..TaskListOptions::default()
    };
    let list = list_tasks(&*broker, &query, &options).await?;
    context.show(
        &list.items.iter().map(task_record).collect::<Vec<_>>(),
        || render(&list.items),
    )?;
    if !list.complete && !context.json {
        context.note(format!(
            "these are the newest {}: list more with --limit",
            args.limit
        ));
    }
    Ok(0)
}

fn render(tasks: &[TaskView]) -> String {
    let now = Timestamp::now();
    let mut table = Table::new(&[
        "TID", "STATE", "TRY", "QUEUE", "AGE", "TOOK", "NAME", "NOTE", "COMMAND",
    ]);
    for task in tasks {
        table.row([
            task.tid.to_string(),
            task.state.to_string(),
            task.attempt.to_string(),
            task.spec.queue.clone(),
            format::age(task.created_at, now),
            task.run_time(now)
                .map_or_else(|| "-".into(), format::three_digits),
            task.spec.display_name().into(),
            note(task, now),
            target_text(task),
        ]);
        if let Some(colour) = colour(task) {
            table.colour(STATE, colour);
        }
    }
    let width = output::terminal_width();
    if output::shows_colours() {
        table.render_in_colour(width)
    } else {
        table.render_to_fit(width)
    }
}

/// The column of the state.
const STATE: usize = 1;

fn colour(task: &TaskView) -> Option<Colour> {
    match task.state {
        TaskState::Completed => Some(Colour::Green),
        TaskState::Failed | TaskState::Timeout | TaskState::Killed => Some(Colour::Red),
        TaskState::Cancelled => Some(Colour::Yellow),
        TaskState::Spawning | TaskState::Running => Some(Colour::Cyan),
        _ => None,
    }
}
