//! From ids or a filter on the command line to tasks.

use raddle_broker::{Broker, Detail, TaskFilter};
use raddle_core::{State, TaskView, Tid};

use crate::{
    args::{FilterArgs, LAST, SelectArgs},
    error::{Failure, Outcome},
    tid,
};

/// The states of tasks that ended badly by themselves.
pub(crate) const FAILED: [State; 3] = [State::Failed, State::Timeout, State::Killed];
/// The states of tasks that are not finished.
pub(crate) const UNFINISHED: [State; 3] = [State::Created, State::Spawning, State::Running];
/// How many tasks are read at once.
const PAGE: u32 = 1000;

/// The tasks that are meant, the oldest first where a filter names them: those in `states`, unless the filter says which.
pub(crate) async fn select(broker: &dyn Broker, args: &SelectArgs, states: &[State]) -> Outcome<Vec<Tid>> {
    select_each(broker, args, states).await?.into_iter().collect()
}

/// The same, where an id that is wrong is no reason to leave out the others.
pub(crate) async fn select_each(
    broker: &dyn Broker,
    args: &SelectArgs,
    states: &[State],
) -> Outcome<Vec<Outcome<Tid>>> {
    if args.filter.is_empty() {
        if args.tids.is_empty() {
            let how =
                "give ids, 'last', - for ids from standard input, or a filter such as --failed, --name or --batch";
            return Err(Failure::Usage(format!("no task is named: {how}")));
        }
        return tid::resolve_each(broker, &args.tids).await;
    }
    let mut found = Vec::new();
    for_each(broker, filter(broker, &args.filter, states).await?, |task| found.push(Ok(task.tid))).await?;
    found.reverse();
    Ok(found)
}

/// What the flags ask a broker for.
pub(crate) async fn filter(broker: &dyn Broker, args: &FilterArgs, states: &[State]) -> Outcome<TaskFilter> {
    let FilterArgs { status, failed, name, queue, batch } = args.clone();
    let states = match (failed, status) {
        (true, _) => FAILED.to_vec(),
        (false, status) if status.is_empty() => states.to_vec(),
        (false, status) => status,
    };
    let batch = match batch {
        Some(batch) => Some(resolve_batch(broker, &batch).await?),
        None => None,
    };
    Ok(TaskFilter { states, name, queue, batch, ..TaskFilter::default() })
}

/// Shows every task that fits to `see`, the newest first.
pub(crate) async fn for_each(broker: &dyn Broker, filter: TaskFilter, mut see: impl FnMut(&TaskView)) -> Outcome<()> {
    let mut before = filter.before;
    loop {
        let page = broker.tasks(TaskFilter { before, limit: PAGE, ..filter.clone() }).await?;
        page.iter().for_each(&mut see);
        match page.last() {
            Some(last) if page.len() == PAGE as usize => before = Some(last.tid),
            _ => return Ok(()),
        }
    }
}

/// The batch that is meant. It has to be known: a mistyped name must not look like work that is done.
pub(crate) async fn resolve_batch(broker: &dyn Broker, name: &str) -> Outcome<String> {
    let batches = broker.summarize(Detail { batches: true, ..Detail::default() }).await?.batches;
    if name == LAST {
        let newest = batches.into_iter().max_by_key(|(_, batch)| batch.since).map(|(name, _)| name);
        return newest.ok_or_else(|| Failure::Usage("there is no batch yet, and so no last one".into()));
    }
    if batches.contains_key(name) {
        return Ok(name.into());
    }
    Err(Failure::Usage(format!("there is no batch '{name}': 'raddle batch list' shows those there are")))
}
