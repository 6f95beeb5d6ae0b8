//! Task ids as people give them, whole or short.

use raddle_broker::Broker;
use raddle_core::{TaskView, Tid, tid::TidArg};

use crate::error::{Failure, Outcome};

/// The id that is meant.
pub(crate) async fn resolve(broker: &dyn Broker, arg: TidArg) -> Outcome<Tid> {
    let short = match arg {
        TidArg::Full(tid) => return Ok(tid),
        TidArg::Short(short) => short,
    };
    match broker.complete(short).await?.as_slice() {
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

/// The task that is meant.
pub(crate) async fn find(broker: &dyn Broker, arg: TidArg) -> Outcome<TaskView> {
    let tid = resolve(broker, arg).await?;
    view(broker, tid).await
}

/// The task with this id.
pub(crate) async fn view(broker: &dyn Broker, tid: Tid) -> Outcome<TaskView> {
    Ok(broker.task(tid).await?.ok_or(raddle_broker::Error::NotFound(tid))?)
}
