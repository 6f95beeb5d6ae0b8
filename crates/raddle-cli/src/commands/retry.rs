//! `raddle task retry`: finished tasks once more.

use raddle_broker::{Broker, Error, TaskFilter};
use raddle_core::{Tid, tid::TidArg};
use serde_json::json;

use crate::{
    args::RetryArgs,
    context::Context,
    error::{Outcome, USAGE},
    output, tid, worker,
};

pub(super) async fn retry(context: &Context, args: &RetryArgs) -> Outcome {
    let broker = context.onlooker().await?;
    let tids = if args.all_dead { dead(&*broker).await? } else { named(&*broker, &args.tids).await? };
    if tids.is_empty() {
        context.note("no task is in the dead-letter queue");
    }
    let mut records = Vec::new();
    let mut code = 0;
    let mut failed = None;
    for old in tids {
        match broker.resubmit(old, args.all_dead).await {
            Ok(new) if context.json => records.push(json!({ "tid": new, "retry_of": old })),
            Ok(new) => output::line(new.to_string())?,
            // The others can be submitted all the same, and this one stays where it is.
            Err(error @ Error::KeyTaken { holder, .. }) => {
                output::complain(&error.to_string());
                records.push(json!({ "tid": null, "retry_of": old, "held_by": holder }));
                code = USAGE;
            }
            // Of all dead letters somebody else has seen to this one meanwhile.
            Err(Error::NotDead(_) | Error::NotFound(_)) if args.all_dead => {}
            Err(error) => {
                failed = Some(error);
                break;
            }
        }
    }
    // Those that were submitted are there, whatever became of the others.
    if context.json {
        output::json(&records)?;
    }
    failed.map_or(Ok(code), |error| Err(error.into()))
}

/// The tasks that were named. Workers among them are refused before anything is submitted.
async fn named(broker: &dyn Broker, args: &[TidArg]) -> Outcome<Vec<Tid>> {
    let tids = tid::resolve_all(broker, args).await?;
    for tid in &tids {
        worker::refuse(broker, &tid::view(broker, *tid).await?, "submitted again").await?;
    }
    Ok(tids)
}

/// The dead letters, the oldest first.
async fn dead(broker: &dyn Broker) -> Outcome<Vec<Tid>> {
    let tasks = broker.tasks(TaskFilter { dead: true, ..TaskFilter::default() }).await?;
    Ok(tasks.iter().rev().map(|task| task.tid).collect())
}
