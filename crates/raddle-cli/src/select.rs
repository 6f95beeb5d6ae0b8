//! Selects tasks by ids or a filter of the command line.

use raddle_broker::{Broker, TaskFilter};
use raddle_model::{
    TaskQuery, TaskState, Tid,
    query::{Condition, Pattern, Term, TextField},
};
use raddle_view::select::{FAILED, check_batch, matching_tids, newest_batch};

use crate::{
    args::{FilterArgs, LAST, SelectArgs},
    error::{Failure, Outcome},
    tid,
};

/// Selects tasks. A filter gives the oldest first, and only those in `states` unless it names
/// states.
pub(crate) async fn select_tasks(
    broker: &dyn Broker,
    args: &SelectArgs,
    states: &[TaskState],
) -> Outcome<Vec<Tid>> {
    select_each(broker, args, states)
        .await?
        .into_iter()
        .collect()
}

/// Selects tasks, with an error for each wrong id.
pub(crate) async fn select_each(
    broker: &dyn Broker,
    args: &SelectArgs,
    states: &[TaskState],
) -> Outcome<Vec<Outcome<Tid>>> {
    if args.filter.is_empty() {
        if args.tids.is_empty() {
            let how = "give ids, 'last', - to read ids from standard input, or a filter such as --failed, --name or --batch";
            return Err(Failure::Usage(format!("no task is selected: {how}")));
        }
        return tid::resolve_each(broker, &args.tids).await;
    }
    let filter = build_filter(broker, &args.filter, states).await?;
    let found = matching_tids(broker, filter).await?;
    Ok(found.into_iter().map(Ok).collect())
}

/// Builds the filter of the flags.
pub(crate) async fn build_filter(
    broker: &dyn Broker,
    args: &FilterArgs,
    states: &[TaskState],
) -> Outcome<TaskFilter> {
    let FilterArgs {
        status,
        failed,
        name,
        queue,
        batch,
    } = args.clone();
    let states = match (failed, status) {
        (true, _) => FAILED.to_vec(),
        (false, status) if status.is_empty() => states.to_vec(),
        (false, status) => status,
    };
    let batch = match batch {
        Some(batch) => Some(resolve_batch(broker, &batch).await?),
        None => None,
    };
    Ok(TaskFilter {
        states,
        name,
        queue,
        batch,
        ..TaskFilter::default()
    })
}

/// Builds the query of the flags.
pub(crate) async fn filter_query(broker: &dyn Broker, args: &FilterArgs) -> Outcome<TaskQuery> {
    let filter = build_filter(broker, args, &[]).await?;
    let patterns = |text: String| vec![Pattern::glob(&text)];
    let exact = |text: String| vec![Pattern::exact(text)];
    let conditions = [
        (!filter.states.is_empty()).then(|| Condition::State(filter.states)),
        filter
            .name
            .map(|name| Condition::Text(TextField::Name, patterns(name))),
        filter
            .queue
            .map(|queue| Condition::Text(TextField::Queue, exact(queue))),
        filter
            .batch
            .map(|batch| Condition::Text(TextField::Batch, exact(batch))),
    ];
    Ok(conditions.into_iter().flatten().map(Term::new).collect())
}

/// Resolves a batch. An unknown name is an error: a mistyped name must not look like finished work.
pub(crate) async fn resolve_batch(broker: &dyn Broker, name: &str) -> Outcome<String> {
    if name == LAST {
        return Ok(newest_batch(broker).await?);
    }
    check_batch(broker, name).await?;
    Ok(name.into())
}
