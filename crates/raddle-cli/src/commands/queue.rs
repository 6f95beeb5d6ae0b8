//! `raddle queue`: reads and writes queues by name.

use std::{
    fs,
    io::{self, Read},
    path::PathBuf,
    time::Duration,
};

use raddle_broker::{
    Broker, DeliveryOutcome, Message,
    queues::{self, QueueCounts, TaskCounts, Watch, WriteOutcome},
};
use raddle_client::wait::MAX_WAIT;
use raddle_model::{QueueName, queue_name::QueueArg};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    args::{Amount, QueueCommand},
    context::Context,
    error::{Failure, OrFail, Outcome},
    format, output,
    table::{Table, labelled},
    tid,
};

/// How many messages are read or written at once.
const PAGE: u32 = 1000;
const STDIN: &str = "-";
/// The pattern that matches every name.
const ANY_NAME: &str = "*";

pub(super) async fn queue(context: &Context, command: QueueCommand) -> Outcome {
    match command {
        QueueCommand::Read {
            queue,
            amount,
            wait,
        } => {
            read(
                context,
                queue,
                amount,
                wait.map_or(Duration::ZERO, |wait| wait.0),
            )
            .await
        }
        QueueCommand::Peek { queue, amount } => {
            let broker = context.open_existing().await?;
            let queue = tid::resolve_queue(&*broker, queue).await?;
            show(
                context,
                &queues::peek(&*broker, &queue, amount.max()).await?,
            )
        }
        QueueCommand::Write {
            queue,
            messages,
            file,
            lines,
        } => write(context, queue, read_bodies(messages, &file, lines)?).await,
        QueueCommand::Move { from, to, amount } => {
            let broker = context.open_existing().await?;
            let (from, to) = (
                tid::resolve_queue(&*broker, from).await?,
                tid::resolve_queue(&*broker, to).await?,
            );
            print_count(
                context,
                "moved",
                queues::move_messages(&*broker, &from, &to, amount.max()).await?,
            )
        }
        QueueCommand::List { pattern, all } => {
            list(
                context,
                if all {
                    Some(ANY_NAME)
                } else {
                    pattern.as_deref()
                },
            )
            .await
        }
        QueueCommand::Stats { queue } => stats(context, queue).await,
        QueueCommand::Pause { queue } => set_paused(context, queue, true).await,
        QueueCommand::Resume { queue } => set_paused(context, queue, false).await,
        QueueCommand::Delete { queue } => {
            let broker = context.open_existing().await?;
            let queue = tid::resolve_queue(&*broker, queue).await?;
            print_count(context, "deleted", queues::delete(&*broker, &queue).await?)
        }
        QueueCommand::Watch {
            queue,
            new,
            limit,
            timeout,
        } => {
            watch(
                context,
                queue,
                new,
                limit,
                timeout.map(|timeout| Instant::now() + timeout.0),
            )
            .await
        }
        QueueCommand::Broadcast { pattern, message } => broadcast(context, &pattern, message).await,
    }
}

async fn read(context: &Context, queue: QueueArg, amount: Amount, wait: Duration) -> Outcome {
    let broker = if wait.is_zero() {
        context.open_existing().await?
    } else {
        context.open_broker().await?
    };
    let queue = &tid::resolve_queue(&*broker, queue).await?;
    let mut left = amount.max();
    let mut wait = wait;
    let mut messages = Vec::new();
    while left > 0 {
        let batch = queues::read(&*broker, queue, left.min(PAGE), wait).await?;
        if batch.is_empty() {
            break;
        }
        left -= u32::try_from(batch.len()).unwrap_or(left).min(left);
        wait = Duration::ZERO;
        if context.json {
            messages.extend(batch);
        } else if let Err(failure) = show(context, &batch) {
            return Err(return_messages(&*broker, queue, &batch, failure).await);
        }
    }
    if context.json
        && let Err(failure) = show(context, &messages)
    {
        return Err(return_messages(&*broker, queue, &messages, failure).await);
    }
    Ok(0)
}

/// Returns messages to the queue that were batch and could not be printed.
async fn return_messages(
    broker: &dyn Broker,
    queue: &QueueName,
    batch: &[Message],
    failure: Failure,
) -> Failure {
    let bodies = batch.iter().map(|message| message.body.clone()).collect();
    match queues::write(broker, queue, bodies).await {
        Ok(_) => failure,
        Err(error) => error.into(),
    }
}

async fn write(context: &Context, queue: QueueArg, bodies: Vec<String>) -> Outcome {
    let broker = context.open_broker().await?;
    let queue = tid::resolve_queue(&*broker, queue).await?;
    let mut written = Vec::new();
    // In chunks, so that other processes can use the broker in between.
    for bodies in bodies.chunks(PAGE as usize) {
        written.extend(queues::write(&*broker, &queue, bodies.to_vec()).await?);
    }
    if written.is_empty() && !bodies.is_empty() {
        let list = "see 'raddle worker list'";
        return Err(Failure::Usage(format!(
            "no live worker reads {queue}: {list}"
        )));
    }
    let (records, lines): (Vec<Value>, Vec<String>) = written.iter().map(write_record).unzip();
    context.show(&records, || lines.concat())
}

/// Reads the messages of the arguments and of the files, in this order.
fn read_bodies(mut messages: Vec<String>, files: &[PathBuf], lines: bool) -> Outcome<Vec<String>> {
    if messages.is_empty() && files.is_empty() {
        messages.push(STDIN.into());
    }
    let split = |text: String| match lines {
        true => text
            .lines()
            .filter(|line| !line.is_empty())
            .map(str::to_owned)
            .collect(),
        false => vec![text],
    };
    let mut bodies = Vec::new();
    for message in messages {
        match message.as_str() {
            STDIN => bodies.extend(split(read_body(message)?)),
            _ => bodies.push(message),
        }
    }
    for file in files {
        let text = match file.to_str() {
            Some(STDIN) => read_body(STDIN.into())?,
            _ => without_last_newline(
                fs::read_to_string(file)
                    .or_usage_at(format_args!("cannot read {}", file.display()))?,
            ),
        };
        bodies.extend(split(text));
    }
    Ok(bodies)
}

fn write_record(written: &WriteOutcome) -> (Value, String) {
    match written {
        WriteOutcome::Stored(id) => (json!({ "id": id }), format!("{id}\n")),
        WriteOutcome::Control(tid, DeliveryOutcome::Applied(state)) => (
            json!({ "tid": tid, "delivered": "applied", "state": state }),
            format!("{tid} {state}\n"),
        ),
        WriteOutcome::Control(tid, DeliveryOutcome::Sent) => (
            json!({ "tid": tid, "delivered": "sent" }),
            format!("{tid} sent\n"),
        ),
    }
}

async fn list(context: &Context, pattern: Option<&str>) -> Outcome {
    let counts = queues::list_counts(&*context.open_existing().await?, pattern).await?;
    context.show(&counts, || {
        let mut table = Table::new(&["QUEUE", "READY", "MESSAGES"]);
        for QueueCounts {
            queue,
            ready,
            messages,
        } in &counts
        {
            table.row([queue.to_string(), ready.to_string(), messages.to_string()]);
        }
        table.render()
    })
}

async fn set_paused(context: &Context, queue: String, paused: bool) -> Outcome {
    let broker = context.open_broker().await?;
    let changed = broker.set_queue_paused(queue.clone(), paused).await?;
    let state = if paused { "paused" } else { "resumed" };
    let already = if changed { "" } else { "already " };
    let record = json!({ "queue": queue, "paused": paused, "changed": changed });
    context.show(&record, || format!("{queue} {already}{state}\n"))
}

async fn stats(context: &Context, queue: QueueArg) -> Outcome {
    let broker = context.open_existing().await?;
    let stats = queues::stats(&*broker, &tid::resolve_queue(&*broker, queue).await?).await?;
    let when = |at: Option<jiff::Timestamp>| at.map_or_else(|| "-".into(), format::time);
    context.show(&stats, || {
        let mut lines = vec![("queue", stats.queue.to_string())];
        lines.extend(stats.tasks.map(|tasks| {
            let TaskCounts {
                ready,
                delayed,
                paused,
                running,
                is_paused,
            } = tasks;
            let claims = if is_paused {
                "; the queue is paused"
            } else {
                ""
            };
            (
                "tasks",
                format!(
                    "{ready} ready, {delayed} delayed, {paused} paused, {running} running{claims}"
                ),
            )
        }));
        lines.extend([
            ("messages", stats.messages.to_string()),
            ("bytes", stats.bytes.to_string()),
            ("oldest", when(stats.oldest)),
            ("newest", when(stats.newest)),
        ]);
        labelled(&lines)
    })
}

async fn watch(
    context: &Context,
    queue: QueueArg,
    new: bool,
    limit: Option<u64>,
    deadline: Option<Instant>,
) -> Outcome {
    let broker = context.open_existing().await?;
    let mut left = limit.unwrap_or(u64::MAX);
    let queue = tid::resolve_queue(&*broker, queue).await?;
    let mut watch = Watch::new(queue, if new { current_id() } else { 0 });
    while left > 0 {
        let wait = deadline.map_or(MAX_WAIT, |deadline| {
            deadline
                .saturating_duration_since(Instant::now())
                .min(MAX_WAIT)
        });
        let mut messages = watch.next(&*broker, wait).await?;
        if messages.is_empty() && deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            break;
        }
        messages.truncate(usize::try_from(left).unwrap_or(usize::MAX));
        left -= messages.len() as u64;
        if context.json {
            // One message per line: a stream has no end at which an array could be closed.
            messages.iter().try_for_each(output::print_json)?;
        } else {
            show(context, &messages)?;
        }
    }
    Ok(0)
}

/// The present time as a message id.
fn current_id() -> u64 {
    u64::try_from(jiff::Timestamp::now().as_nanosecond()).unwrap_or(0)
}

async fn broadcast(context: &Context, pattern: &str, message: String) -> Outcome {
    let reached = queues::broadcast(
        &*context.open_existing().await?,
        pattern,
        &read_body(message)?,
    )
    .await?;
    if reached.is_empty() && !context.json {
        context.note("no matching queue has tasks or messages");
    }
    context.show(&reached, || {
        reached.iter().map(|queue| format!("{queue}\n")).collect()
    })
}

/// Reads a message: the argument, or standard input without its last line end.
fn read_body(argument: String) -> Outcome<String> {
    if argument != STDIN {
        return Ok(argument);
    }
    let mut text = String::new();
    io::stdin()
        .lock()
        .read_to_string(&mut text)
        .or_usage_at("cannot read standard input")?;
    Ok(without_last_newline(text))
}

fn without_last_newline(mut text: String) -> String {
    if text.ends_with('\n') {
        text.pop();
    }
    text
}

fn show(context: &Context, messages: &[Message]) -> Outcome {
    context.show(&messages, || {
        messages
            .iter()
            .map(|message| format!("{}\n", message.body))
            .collect()
    })
}

fn print_count(context: &Context, action: &str, n: u64) -> Outcome {
    context.show(&json!({ action: n }), || {
        format!("{action} {}\n", format::count(n, "message"))
    })
}
