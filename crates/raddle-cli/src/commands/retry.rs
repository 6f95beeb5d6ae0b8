//! `raddle task retry`: submits finished tasks again.

use raddle_broker::{Broker, Error, TaskFilter};
use raddle_model::Tid;
use raddle_view::{
    control::refuse_worker,
    select::{FAILED, matching_tids},
};
use serde_json::json;

use crate::{
    args::{FilterArgs, RetryArgs, SelectArgs},
    context::Context,
    error::{Outcome, USAGE},
    output,
    select::{build_filter, select_tasks},
    tid,
};

pub(super) async fn retry(context: &Context, args: &RetryArgs) -> Outcome {
    let broker = context.open_existing().await?;
    // A filter without a state selects dead letters. A task that was submitted again is no longer a
    // dead letter, so a filter does not select it twice.
    let filter = &args.tasks.filter;
    let only_dead = args.all_dead || (!filter.is_empty() && filter.status.is_empty());
    let tids = if only_dead {
        dead_letters(&*broker, filter).await?
    } else {
        select_checked(&*broker, &args.tasks).await?
    };
    if tids.is_empty() {
        context.note(if args.all_dead {
            "no task is in the dead-letter queue"
        } else {
            "no matching task has failed"
        });
    }
    resubmit_all(context, &*broker, tids, only_dead).await
}

/// Submits finished tasks again, and prints the new ids. With `only_dead`, tasks that are no longer
/// dead letters are skipped.
pub(super) async fn resubmit_all(
    context: &Context,
    broker: &dyn Broker,
    tids: Vec<Tid>,
    only_dead: bool,
) -> Outcome {
    let mut records = Vec::new();
    let mut code = 0;
    let mut failed = None;
    for old in tids {
        match broker.resubmit(old, only_dead).await {
            Ok(new) if context.json => records.push(json!({ "tid": new, "retry_of": old })),
            Ok(new) => output::print_line(new.to_string())?,
            // The other tasks can still be submitted, and this one stays a dead letter.
            Err(error @ Error::KeyTaken { holder, .. }) => {
                output::eprint(&error.to_string());
                records.push(json!({ "tid": null, "retry_of": old, "held_by": holder }));
                code = USAGE;
            }
            // Another command has submitted this dead letter meanwhile.
            Err(Error::NotDead(_) | Error::NotFound(_)) if only_dead => {}
            Err(error) => {
                failed = Some(error);
                break;
            }
        }
    }
    // Print the submitted ones also after an error.
    if context.json {
        output::print_json(&records)?;
    }
    failed.map_or(Ok(code), |error| Err(error.into()))
}

/// The named tasks. Workers among them are refused before anything is submitted.
async fn select_checked(broker: &dyn Broker, args: &SelectArgs) -> Outcome<Vec<Tid>> {
    let tids = select_tasks(broker, args, &FAILED).await?;
    for tid in &tids {
        refuse_worker(
            broker,
            &tid::get_task(broker, *tid).await?,
            "submitted again",
        )
        .await?;
    }
    Ok(tids)
}

/// The dead letters, the oldest first.
async fn dead_letters(broker: &dyn Broker, args: &FilterArgs) -> Outcome<Vec<Tid>> {
    let filter = TaskFilter {
        dead: true,
        ..build_filter(broker, args, &[]).await?
    };
    Ok(matching_tids(broker, filter).await?)
}
