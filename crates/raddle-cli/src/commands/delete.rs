//! `raddle task delete` and `raddle task clean`: records of finished tasks.

use jiff::{SignedDuration, Timestamp};
use raddle_broker::Broker;
use raddle_model::Tid;
use raddle_view::select::{FINISHED, for_each};
use serde_json::json;

use crate::{
    args::{CleanArgs, SelectArgs},
    context::Context,
    error::{Failure, Outcome},
    format::count,
    select::{self, select_tasks},
    tid,
};

pub(super) async fn delete(context: &Context, args: &SelectArgs) -> Outcome {
    let broker = context.open_existing().await?;
    let tids = select_tasks(&*broker, args, &FINISHED).await?;
    // Resolve all ids first: deletion cannot be undone.
    if args.filter.is_empty() {
        for tid in &tids {
            let task = tid::get_task(&*broker, *tid).await?;
            if !task.state.is_terminal() {
                let hint = "stop it first with 'raddle task stop'";
                return Err(Failure::Usage(format!(
                    "task {tid} is {}, and cannot be deleted: {hint}",
                    task.state
                )));
            }
        }
    }
    delete_all(context, &*broker, tids).await
}

pub(super) async fn clean(context: &Context, args: &CleanArgs) -> Outcome {
    let broker = context.open_existing().await?;
    let before = args.older_than.map(|age| {
        let age = SignedDuration::try_from(age.0).unwrap_or(SignedDuration::MAX);
        Timestamp::now().checked_sub(age).unwrap_or(Timestamp::MIN)
    });
    let mut tids = Vec::new();
    let filter = select::build_filter(&*broker, &args.filter, &FINISHED).await?;
    for_each(&*broker, filter, |task| {
        let is_old = before.is_none_or(|before| task.finished_at.is_some_and(|at| at < before));
        if task.state.is_terminal() && is_old && (args.dead || !task.dead) {
            tids.push(task.tid);
        }
    })
    .await?;
    delete_all(context, &*broker, tids).await
}

/// Deletes the records of these tasks, and prints how many there were.
pub(super) async fn delete_all(context: &Context, broker: &dyn Broker, tids: Vec<Tid>) -> Outcome {
    let deleted = if tids.is_empty() {
        0
    } else {
        broker.delete(tids).await?
    };
    context.show(&json!({ "deleted": deleted }), || {
        format!("deleted {}\n", count(deleted, "task"))
    })
}
