//! `raddle task retry`: finished tasks once more.

use raddle_broker::{Broker, TaskFilter};
use raddle_core::Tid;
use serde_json::json;

use crate::{args::RetryArgs, context::Context, error::Outcome, output, tid};

pub(super) async fn retry(context: &Context, args: &RetryArgs) -> Outcome {
    let broker = context.onlooker().await?;
    let tids = if args.all_dead { dead(&*broker).await? } else { tid::resolve_all(&*broker, &args.tids).await? };
    if tids.is_empty() {
        context.note("no task is in the dead-letter queue");
    }
    let mut records = Vec::new();
    for old in tids {
        let new = broker.resubmit(old).await?;
        if context.json {
            records.push(json!({ "tid": new, "retry_of": old }));
        } else {
            output::line(new.to_string())?;
        }
    }
    if context.json {
        output::json(&records)?;
    }
    Ok(0)
}

/// The dead letters, the oldest first.
async fn dead(broker: &dyn Broker) -> Outcome<Vec<Tid>> {
    let tasks = broker.tasks(TaskFilter { dead: true, ..TaskFilter::default() }).await?;
    Ok(tasks.iter().rev().map(|task| task.tid).collect())
}
