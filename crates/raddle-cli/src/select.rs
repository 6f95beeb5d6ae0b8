//! Selects tasks by ids or a filter of the command line.

use raddle_broker::{Broker, SummaryDetail, TaskFilter};
use raddle_model::{TaskState, TaskView, Tid};

use crate::{
    args::{FilterArgs, LAST, SelectArgs},
    error::{Failure, Outcome},
    tid,
};

/// The states of tasks that failed by themselves.
pub(crate) const FAILED: [TaskState; 3] =
    [TaskState::Failed, TaskState::Timeout, TaskState::Killed];
/// The states of tasks that are not finished.
pub(crate) const UNFINISHED: [TaskState; 3] =
    [TaskState::Created, TaskState::Spawning, TaskState::Running];
/// How many tasks are read at once.
const PAGE: u32 = 1000;

/// The selected tasks; for a filter the oldest first, and those in `states` unless the filter names
/// states.
pub(crate) async fn select(
    broker: &dyn Broker,
    args: &SelectArgs,
    states: &[TaskState],
) -> Outcome<Vec<Tid>> {
    select_each(broker, args, states)
        .await?
        .into_iter()
        .collect()
}

/// The same, with an error for each wrong id instead of one for all.
pub(crate) async fn select_each(
    broker: &dyn Broker,
    args: &SelectArgs,
    states: &[TaskState],
) -> Outcome<Vec<Outcome<Tid>>> {
    if args.filter.is_empty() {
        if args.tids.is_empty() {
            let how = "give ids, 'last', - for ids from standard input, or a filter such as --failed, --name or --batch";
            return Err(Failure::Usage(format!("no task is named: {how}")));
        }
        return tid::resolve_each(broker, &args.tids).await;
    }
    let mut found = Vec::new();
    for_each(
        broker,
        filter(broker, &args.filter, states).await?,
        |task| found.push(Ok(task.tid)),
    )
    .await?;
    found.reverse();
    Ok(found)
}

/// The filter that the flags describe.
pub(crate) async fn filter(
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

/// Calls `see` with every matching task, the newest first.
pub(crate) async fn for_each(
    broker: &dyn Broker,
    filter: TaskFilter,
    mut see: impl FnMut(&TaskView),
) -> Outcome<()> {
    let mut before = filter.before;
    loop {
        let page = broker
            .tasks(TaskFilter {
                before,
                limit: PAGE,
                ..filter.clone()
            })
            .await?;
        page.iter().for_each(&mut see);
        match page.last() {
            Some(last) if page.len() == PAGE as usize => before = Some(last.tid),
            _ => return Ok(()),
        }
    }
}

/// Resolves a batch. An unknown name is an error: a mistyped name must not look like finished work.
pub(crate) async fn resolve_batch(broker: &dyn Broker, name: &str) -> Outcome<String> {
    let batches = broker
        .summarize(SummaryDetail {
            batches: true,
            ..SummaryDetail::default()
        })
        .await?
        .batches;
    if name == LAST {
        let newest = batches
            .into_iter()
            .max_by_key(|(_, batch)| batch.since)
            .map(|(name, _)| name);
        return newest
            .ok_or_else(|| Failure::Usage("there is no batch yet, and so no last one".into()));
    }
    if batches.contains_key(name) {
        return Ok(name.into());
    }
    Err(Failure::Usage(format!(
        "there is no batch '{name}': 'raddle batch list' shows those there are"
    )))
}
