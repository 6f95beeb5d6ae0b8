//! Task ids as people give them, whole or short.

use raddle_broker::Broker;
use raddle_core::{QueueName, TaskView, Tid, queue_name::QueueArg, tid::TidArg};

use crate::{
    error::{Failure, Outcome},
    worker,
};

/// The id that is meant.
pub(crate) async fn resolve(broker: &dyn Broker, arg: TidArg) -> Outcome<Tid> {
    let short = match arg {
        TidArg::Full(tid) => return Ok(tid),
        TidArg::Short(short) => short,
    };
    let mut found = broker.complete(short).await?;
    if found.is_empty() {
        // Whoever is there for one task alone is none itself, and wears its id in its title all the same.
        let workers = broker.workers().await?;
        found = workers.iter().map(|worker| worker.tid).filter(|tid| tid.short() == short).collect();
    }
    match found.as_slice() {
        [tid] => Ok(*tid),
        [] => {
            Err(Failure::Usage(format!("no task ends in {short} here: 'raddle task list --all' shows those there are")))
        }
        several => {
            let all: Vec<String> = several.iter().map(Tid::to_string).collect();
            Err(Failure::Usage(format!("{short} is short for several tasks: give one in full: {}", all.join(", "))))
        }
    }
}

/// The ids that are meant, in the order given.
pub(crate) async fn resolve_all(broker: &dyn Broker, args: &[TidArg]) -> Outcome<Vec<Tid>> {
    let mut tids = Vec::new();
    for arg in args {
        tids.push(resolve(broker, *arg).await?);
    }
    Ok(tids)
}

/// The queue that is meant.
pub(crate) async fn resolve_queue(broker: &dyn Broker, arg: QueueArg) -> Outcome<QueueName> {
    match arg {
        QueueArg::Full(queue) => Ok(queue),
        QueueArg::Short(short, port) => Ok(QueueName::Task(resolve(broker, TidArg::Short(short)).await?, port)),
    }
}

/// The task that is meant, or the worker, as a task: one that is there for one task alone is in the registry and nowhere else. With it, in that case, what it
/// runs.
pub(crate) async fn meet(broker: &dyn Broker, arg: TidArg) -> Outcome<(TaskView, Vec<Tid>)> {
    let tid = resolve(broker, arg).await?;
    if let Some(task) = broker.task(tid).await? {
        return Ok((task, Vec::new()));
    }
    let workers = broker.workers().await?;
    let entry = workers.iter().find(|worker| worker.tid == tid).ok_or(raddle_broker::Error::NotFound(tid))?;
    Ok((worker::as_task(entry), worker::hand(broker, tid).await?))
}

/// The task that is meant.
pub(crate) async fn find(broker: &dyn Broker, arg: TidArg) -> Outcome<TaskView> {
    let tid = resolve(broker, arg).await?;
    view(broker, tid).await
}

/// The task with this id.
pub(crate) async fn view(broker: &dyn Broker, tid: Tid) -> Outcome<TaskView> {
    Ok(broker.task(tid).await?.ok_or(raddle_broker::Error::NotFound(tid))?)
}
