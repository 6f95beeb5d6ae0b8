//! `raddle wait`: waits until tasks are finished.

use raddle_model::TaskState;
use raddle_view::exit_code;
use serde_json::json;
use tokio::time::Instant;

use super::batch;
use crate::{
    args::WaitArgs,
    context::Context,
    error::{Failure, Outcome, TASK_FAILED},
    follow::{self, PrintedReasons},
    output, tid as tids,
};

pub(super) async fn wait(context: &Context, args: &WaitArgs) -> Outcome {
    let broker = context.open_existing().await?;
    let deadline = args.timeout.map(|timeout| Instant::now() + timeout.0);
    if let Some(batch) = &args.batch {
        return batch::wait(context, &*broker, batch, deadline).await;
    }
    let all = tids::resolve_all(&*broker, &args.tids).await?;
    // Check all first: a mistyped id must not surface after an hour of waiting.
    for tid in &all {
        tids::get_task(&*broker, *tid).await?;
        follow::check_not_within(&*broker, *tid).await?;
    }
    let mut records = Vec::new();
    let mut all_completed = true;
    let mut timed_out = None;
    let mut printed = PrintedReasons::default();
    for tid in all {
        // The tasks after one that timed out may have finished.
        let finished = follow::wait_until_finished(&*broker, tid, deadline);
        let state =
            match follow::explain_while(context, &*broker, tid, &mut printed, finished).await {
                Err(failure @ Failure::TimedOut(_)) => {
                    timed_out.get_or_insert(failure);
                    continue;
                }
                other => other?,
            };
        all_completed &= state == TaskState::Completed;
        if context.json {
            let task = tids::get_task(&*broker, tid).await?;
            records.push(
                json!({ "tid": tid, "state": state, "exit_code": exit_code::of_task(state, task.report.as_ref()) }),
            );
        } else {
            output::print_line(format!("{tid} {state}"))?;
        }
    }
    if context.json {
        output::print_json(&records)?;
    }
    match timed_out {
        Some(failure) => Err(failure),
        None => Ok(if all_completed { 0 } else { TASK_FAILED }),
    }
}
