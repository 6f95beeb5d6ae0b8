//! `raddle batch`: batches of tasks.

use std::{pin::pin, time::Duration};

use futures_util::{StreamExt, stream};
use indicatif::ProgressBar;
use jiff::Timestamp;
use raddle_broker::{Broker, Error, TaskFilter};
use raddle_model::{ControlCommand, ControlMessage};
use raddle_view::{
    batch::{self, BatchCounts, ListedBatch, next_counts, waiting_task},
    select::{FAILED, FINISHED, UNFINISHED},
};
use serde_json::json;
use tokio::time::{Instant, timeout_at};

use super::{control::MAX_IN_FLIGHT, delete, retry};
use crate::{
    args::BatchCommand,
    context::Context,
    error::{Failure, Outcome, TASK_FAILED, TIMED_OUT},
    follow::{self, PrintedReasons},
    format::{self, count},
    progress,
    select::resolve_batch,
    table::{self, Table},
};

pub(super) async fn execute(context: &Context, command: BatchCommand) -> Outcome {
    let broker = context.open_existing().await?;
    let broker = &*broker;
    match command {
        BatchCommand::List { limit } => list(context, broker, limit).await,
        BatchCommand::Status(batch) => status(context, broker, &batch.name).await,
        BatchCommand::Wait { batch, timeout } => {
            let deadline = timeout.map(|timeout| Instant::now() + timeout.0);
            wait(context, broker, &batch.name, deadline).await
        }
        BatchCommand::RetryFailed(batch) => retry_failed(context, broker, &batch.name).await,
        BatchCommand::Cancel { batch, timeout } => {
            cancel(context, broker, &batch.name, timeout.0).await
        }
        BatchCommand::Delete(batch) => {
            let name = resolve_batch(broker, &batch.name).await?;
            let tids = batch::tids(broker, &name, &FINISHED).await?;
            delete::delete_all(context, broker, tids).await
        }
    }
}

/// Shows the counts on a progress bar.
fn show_progress(bar: &ProgressBar, counts: &BatchCounts) {
    bar.set_length(counts.total());
    bar.set_position(counts.finished());
    let failed = counts.failed();
    bar.set_message(if failed > 0 {
        format!(" ({failed} failed)")
    } else {
        String::new()
    });
}

fn states_text(counts: &BatchCounts) -> String {
    let states: Vec<String> = counts
        .states()
        .map(|(state, n)| format!("{n} {state}"))
        .collect();
    states.join(", ")
}

async fn list(context: &Context, broker: &dyn Broker, limit: usize) -> Outcome {
    let (batches, older) = batch::list(broker, limit).await?;
    context.show(
        &json!(batches.iter().map(ListedBatch::record).collect::<Vec<_>>()),
        || {
            let now = Timestamp::now();
            let mut table = Table::new(&["BATCH", "TASKS", "FINISHED", "FAILED", "AGE"]);
            for ListedBatch {
                name,
                since,
                counts,
            } in &batches
            {
                table.row([
                    name.clone(),
                    counts.total().to_string(),
                    counts.finished().to_string(),
                    counts.failed().to_string(),
                    format::age(*since, now),
                ]);
            }
            table.render()
        },
    )?;
    if older > 0 && !context.json {
        context.note(format!(
            "these are the newest {limit}: list {older} more with --limit"
        ));
    }
    Ok(0)
}

async fn status(context: &Context, broker: &dyn Broker, name: &str) -> Outcome {
    let name = resolve_batch(broker, name).await?;
    let counts = BatchCounts::read(broker, &name).await?;
    context.show(&json!(counts.record(&name)), || {
        let percent = counts.finished() * 100 / counts.total().max(1);
        let mut lines = vec![
            ("batch", name.clone()),
            (
                "tasks",
                format!("{}: {}", counts.total(), states_text(&counts)),
            ),
            ("finished", format!("{percent} %")),
        ];
        if counts.failed() > 0 {
            let hint = format!(
                "see 'raddle task list --batch {name} --failed', 'raddle batch retry-failed {name}'"
            );
            lines.push(("failed", format!("{} ({hint})", counts.failed())));
        }
        table::labelled(&lines)
    })
}

/// Waits until all tasks of a batch are finished, and reports their states.
pub(super) async fn wait(
    context: &Context,
    broker: &dyn Broker,
    name: &str,
    deadline: Option<Instant>,
) -> Outcome {
    let name = resolve_batch(broker, name).await?;
    check_not_within(broker, &name).await?;
    let waiting = wait_until_finished(context, broker, &name);
    let counts = match deadline {
        None => waiting.await?,
        Some(deadline) => match timeout_at(deadline, waiting).await {
            Ok(counts) => counts?,
            Err(_) => {
                let left = BatchCounts::read(broker, &name).await?.unfinished();
                let hint = format!(
                    "see 'raddle task list --batch {name} --status created,spawning,running'"
                );
                let left = count(left, "task");
                return Err(Failure::TimedOut(format!(
                    "batch {name} has {left} unfinished: {hint}"
                )));
            }
        },
    };
    print_counts(context, &name, &counts)
}

/// Prints the counts of a batch, and returns the exit code.
pub(super) fn print_counts(context: &Context, name: &str, counts: &BatchCounts) -> Outcome {
    context.show(&json!(counts.record(name)), || {
        format!("{name} {}\n", states_text(counts))
    })?;
    Ok(if counts.is_completed() {
        0
    } else {
        TASK_FAILED
    })
}

/// Refuses to wait for a batch that contains the task of this process.
async fn check_not_within(broker: &dyn Broker, name: &str) -> Outcome<()> {
    let Some(current) = crate::spec::current_task() else {
        return Ok(());
    };
    let filter = TaskFilter {
        among: Some(vec![current]),
        batch: Some(name.into()),
        ..TaskFilter::default()
    };
    match broker.tasks(filter).await?.first() {
        Some(task) => Err(follow::recursive_wait(task.tid)),
        None => Ok(()),
    }
}

async fn wait_until_finished(
    context: &Context,
    broker: &dyn Broker,
    name: &str,
) -> Outcome<BatchCounts> {
    let mut counts = BatchCounts::read(broker, name).await?;
    let bar = progress::finished(counts.total(), !context.json && !context.quiet);
    let mut printed = PrintedReasons::default();
    while counts.unfinished() > 0 {
        show_progress(&bar, &counts);
        // Explain one waiting task: the others usually wait for the same reason.
        let waiting = waiting_task(broker, name).await?;
        let changed = next_counts(broker, name, &counts);
        counts = match waiting {
            Some(tid) => follow::explain_while(context, broker, tid, &mut printed, changed).await?,
            None => changed.await?,
        };
    }
    Ok(counts)
}

async fn retry_failed(context: &Context, broker: &dyn Broker, name: &str) -> Outcome {
    let name = resolve_batch(broker, name).await?;
    let failed = batch::tids(broker, &name, &FAILED).await?;
    if failed.is_empty() {
        context.note(format!("no task of batch {name} has failed"));
    }
    retry::resubmit_all(context, broker, failed, false).await
}

/// Stops the unfinished tasks, and waits for their end.
async fn cancel(context: &Context, broker: &dyn Broker, name: &str, timeout: Duration) -> Outcome {
    let name = resolve_batch(broker, name).await?;
    let deadline = Instant::now() + timeout;
    stop_all(broker, &name).await?;
    let ended = async {
        let mut counts = BatchCounts::read(broker, &name).await?;
        while counts.unfinished() > 0 {
            counts = next_counts(broker, &name, &counts).await?;
        }
        Ok::<_, Failure>(counts)
    };
    match timeout_at(deadline, ended).await {
        Ok(counts) => {
            let counts = counts?;
            context.show(&json!(counts.record(&name)), || {
                format!("{name} {}\n", states_text(&counts))
            })
        }
        Err(_) => {
            let left = count(BatchCounts::read(broker, &name).await?.unfinished(), "task");
            context.note(format!(
                "{left} of batch {name} still running: wait with 'raddle batch wait {name}'"
            ));
            Ok(TIMED_OUT)
        }
    }
}

/// Sends `STOP` to all unfinished tasks of a batch.
pub(super) async fn stop_all(broker: &dyn Broker, name: &str) -> Outcome<()> {
    send_to_all(broker, name, ControlCommand::Stop).await
}

/// Kills all tasks of a batch that are not finished.
pub(super) async fn kill_all(broker: &dyn Broker, name: &str) -> Outcome<()> {
    send_to_all(broker, name, ControlCommand::Kill).await
}

async fn send_to_all(broker: &dyn Broker, name: &str, command: ControlCommand) -> Outcome<()> {
    let tids = batch::tids(broker, name, &UNFINISHED).await?;
    let send = |tid| broker.control(tid, ControlMessage::new(command));
    let mut sent = pin!(stream::iter(tids.into_iter().map(send)).buffered(MAX_IN_FLIGHT));
    while let Some(result) = sent.next().await {
        match result {
            // The task has ended meanwhile.
            Ok(_) | Err(Error::Finished(..) | Error::NotFound(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
