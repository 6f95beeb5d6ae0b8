//! Finds tasks by full or short ids.

use std::io::{self, BufRead};

use raddle_broker::Broker;
use raddle_model::{QueueName, TaskView, Tid, queue_name::QueueArg, tid::TidArg};
use raddle_view::find;
pub(crate) use raddle_view::find::get_task;

use crate::{
    args::TaskArg,
    error::{Failure, OrFail, Outcome},
};

/// Resolves an id.
pub(crate) async fn resolve(broker: &dyn Broker, arg: impl Into<TaskArg>) -> Outcome<Tid> {
    match arg.into() {
        TaskArg::Id(TidArg::Full(tid)) => Ok(tid),
        TaskArg::Id(TidArg::Short(short)) => Ok(find::resolve_short_id(broker, short).await?),
        TaskArg::Last => Ok(find::newest_task(broker).await?),
        TaskArg::Stdin => Err(Failure::Usage(
            "this command takes one task, not ids from standard input".into(),
        )),
    }
}

/// Resolves ids, in their order.
pub(crate) async fn resolve_all<A: Into<TaskArg> + Copy>(
    broker: &dyn Broker,
    args: &[A],
) -> Outcome<Vec<Tid>> {
    resolve_each(broker, args).await?.into_iter().collect()
}

/// Resolves ids, with an error for each wrong id.
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

/// Reads an id from the first word of each line, so that the output of other commands can be piped
/// in.
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
pub(crate) async fn find_task_or_worker(
    broker: &dyn Broker,
    arg: impl Into<TaskArg>,
) -> Outcome<(TaskView, Vec<Tid>)> {
    let tid = resolve(broker, arg).await?;
    Ok(find::get_task_or_worker(broker, tid).await?)
}

/// Finds a task.
pub(crate) async fn find_task(broker: &dyn Broker, arg: impl Into<TaskArg>) -> Outcome<TaskView> {
    let tid = resolve(broker, arg).await?;
    Ok(get_task(broker, tid).await?)
}
