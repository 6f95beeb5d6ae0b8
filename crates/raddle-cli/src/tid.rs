//! Resolves task ids, full or short.

use std::io::{self, BufRead};

use raddle_broker::{Broker, TaskFilter};
use raddle_model::{QueueName, TaskView, Tid, queue_name::QueueArg, tid::TidArg};

use crate::{
    args::TaskArg,
    error::{Failure, OrFail, Outcome},
    worker,
};

/// Resolves an id.
pub(crate) async fn resolve(broker: &dyn Broker, arg: impl Into<TaskArg>) -> Outcome<Tid> {
    let short = match arg.into() {
        TaskArg::Id(TidArg::Full(tid)) => return Ok(tid),
        TaskArg::Id(TidArg::Short(short)) => short,
        TaskArg::Last => return newest(broker).await,
        TaskArg::Stdin => {
            return Err(Failure::Usage(
                "this command takes one task, and no ids from standard input".into(),
            ));
        }
    };
    let mut found = broker.resolve_short_id(short).await?;
    if found.is_empty() {
        // An ephemeral worker has no task record, but its title shows its id.
        let workers = broker.workers().await?;
        found = workers
            .iter()
            .map(|worker| worker.tid)
            .filter(|tid| tid.short() == short)
            .collect();
    }
    match found.as_slice() {
        [tid] => Ok(*tid),
        [] => Err(Failure::Usage(format!(
            "no task ends in {short} here: 'raddle task list --all' shows those there are"
        ))),
        several => {
            let all: Vec<String> = several.iter().map(Tid::to_string).collect();
            Err(Failure::Usage(format!(
                "{short} is short for several tasks: give one in full: {}",
                all.join(", ")
            )))
        }
    }
}

/// The task that was submitted last.
async fn newest(broker: &dyn Broker) -> Outcome<Tid> {
    let newest = broker
        .tasks(TaskFilter {
            limit: 1,
            ..TaskFilter::default()
        })
        .await?;
    newest
        .first()
        .map(|task| task.tid)
        .ok_or_else(|| Failure::Usage("there is no task yet, and so no last one".into()))
}

/// Resolves ids, in the order given.
pub(crate) async fn resolve_all<A: Into<TaskArg> + Copy>(
    broker: &dyn Broker,
    args: &[A],
) -> Outcome<Vec<Tid>> {
    resolve_each(broker, args).await?.into_iter().collect()
}

/// The same, with an error for each wrong id.
pub(crate) async fn resolve_each<A: Into<TaskArg> + Copy>(
    broker: &dyn Broker,
    args: &[A],
) -> Outcome<Vec<Outcome<Tid>>> {
    let mut tids = Vec::new();
    for arg in args {
        match (*arg).into() {
            TaskArg::Stdin => {
                for arg in read_ids(io::stdin().lock())? {
                    tids.push(resolve(broker, arg).await);
                }
            }
            arg => tids.push(resolve(broker, arg).await),
        }
    }
    Ok(tids)
}

/// Reads ids from lines, the first word of each: the output of other commands can be piped in.
fn read_ids(lines: impl BufRead) -> Outcome<Vec<TidArg>> {
    let mut ids = Vec::new();
    for (line, n) in lines.lines().zip(1..) {
        let line = line.or_usage_at("cannot read standard input")?;
        if let Some(word) = line.split_whitespace().next() {
            ids.push(
                word.parse()
                    .or_usage_at(format_args!("line {n} of standard input"))?,
            );
        }
    }
    Ok(ids)
}

/// Resolves a queue.
pub(crate) async fn resolve_queue(broker: &dyn Broker, arg: QueueArg) -> Outcome<QueueName> {
    match arg {
        QueueArg::Full(queue) => Ok(queue),
        QueueArg::Short(short, port) => Ok(QueueName::Task(
            resolve(broker, TidArg::Short(short)).await?,
            port,
        )),
    }
}

/// Finds a task, or a worker as a task. An ephemeral worker is only in the registry; its tasks are
/// returned with it.
pub(crate) async fn meet(
    broker: &dyn Broker,
    arg: impl Into<TaskArg>,
) -> Outcome<(TaskView, Vec<Tid>)> {
    let tid = resolve(broker, arg).await?;
    if let Some(task) = broker.task(tid).await? {
        return Ok((task, Vec::new()));
    }
    let workers = broker.workers().await?;
    let entry = workers
        .iter()
        .find(|worker| worker.tid == tid)
        .ok_or(raddle_broker::Error::NotFound(tid))?;
    Ok((
        worker::as_task(entry),
        worker::held_tasks(broker, tid).await?,
    ))
}

/// Finds a task.
pub(crate) async fn find(broker: &dyn Broker, arg: impl Into<TaskArg>) -> Outcome<TaskView> {
    let tid = resolve(broker, arg).await?;
    view(broker, tid).await
}

/// The task with this id.
pub(crate) async fn view(broker: &dyn Broker, tid: Tid) -> Outcome<TaskView> {
    Ok(broker
        .task(tid)
        .await?
        .ok_or(raddle_broker::Error::NotFound(tid))?)
}
