//! `raddle queue`: any queue, by its name.

use std::{
    io::{self, Read},
    time::Duration,
};

use raddle_broker::{
    Broker, Delivered, Message,
    queues::{self, Watch, Written},
};
use raddle_core::QueueName;
use raddle_fabric::wait::LONG;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    args::{Amount, QueueCommand},
    context::Context,
    error::{Failure, Outcome},
    format, output,
    table::Table,
};

/// How many messages are taken at once where all of a queue is read.
const PAGE: u32 = 1000;
const STDIN: &str = "-";

pub(super) async fn queue(context: &Context, command: QueueCommand) -> Outcome {
    match command {
        QueueCommand::Read { queue, amount, wait } => {
            let wait = wait.map_or(Duration::ZERO, |wait| wait.0);
            read(context, &queue, amount, wait).await?;
        }
        QueueCommand::Peek { queue, amount } => {
            let messages = queues::peek(&*context.onlooker().await?, &queue, amount.max()).await?;
            show(context, &messages)?;
        }
        QueueCommand::Write { queue, messages } => write(context, &queue, messages).await?,
        QueueCommand::Move { from, to, amount } => {
            let moved = queues::shift(&*context.onlooker().await?, &from, &to, amount.max()).await?;
            tell(context, "moved", moved)?;
        }
        QueueCommand::List { pattern } => list(context, &pattern).await?,
        QueueCommand::Stats { queue } => stats(context, &queue).await?,
        QueueCommand::Delete { queue } => {
            let deleted = queues::delete(&*context.onlooker().await?, &queue).await?;
            tell(context, "deleted", deleted)?;
        }
        QueueCommand::Watch { queue, new, limit, timeout } => {
            let deadline = timeout.map(|timeout| Instant::now() + timeout.0);
            watch(context, queue, new, limit, deadline).await?;
        }
        QueueCommand::Broadcast { pattern, message } => broadcast(context, &pattern, message).await?,
    }
    Ok(0)
}

async fn read(context: &Context, queue: &QueueName, amount: Amount, wait: Duration) -> Outcome<()> {
    let broker = if wait.is_zero() { context.onlooker().await? } else { context.broker().await? };
    let mut left = amount.max();
    let mut wait = wait;
    let mut shown = Vec::new();
    while left > 0 {
        let taken = queues::read(&*broker, queue, left.min(PAGE), wait).await?;
        if taken.is_empty() {
            break;
        }
        left -= u32::try_from(taken.len()).unwrap_or(left).min(left);
        wait = Duration::ZERO;
        if context.json {
            shown.extend(taken);
        } else if let Err(failure) = print(&taken) {
            return Err(put_back(&*broker, queue, &taken, failure).await);
        }
    }
    if context.json
        && let Err(failure) = show(context, &shown)
    {
        return Err(put_back(&*broker, queue, &shown, failure).await);
    }
    Ok(())
}

/// Puts back what was taken and could not be shown: it would be gone otherwise.
async fn put_back(broker: &dyn Broker, queue: &QueueName, taken: &[Message], failure: Failure) -> Failure {
    let bodies = taken.iter().map(|message| message.body.clone()).collect();
    match queues::write(broker, queue, bodies).await {
        Ok(_) => failure,
        Err(error) => error.into(),
    }
}

async fn write(context: &Context, queue: &QueueName, messages: Vec<String>) -> Outcome<()> {
    let bodies = messages.into_iter().map(body).collect::<Outcome<Vec<_>>>()?;
    let written = queues::write(&*context.broker().await?, queue, bodies).await?;
    if context.json {
        return output::json(&written.iter().map(written_record).collect::<Vec<_>>());
    }
    written.iter().try_for_each(|one| match one {
        Written::Stored(id) => output::line(id.to_string()),
        Written::Control(tid, Delivered::Applied(state)) => output::line(format!("{tid} {state}")),
        Written::Control(tid, Delivered::Sent) => output::line(format!("{tid} sent")),
    })
}

fn written_record(written: &Written) -> Value {
    match written {
        Written::Stored(id) => json!({ "id": id }),
        Written::Control(tid, Delivered::Applied(state)) => {
            json!({ "tid": tid, "delivered": "applied", "state": state })
        }
        Written::Control(tid, Delivered::Sent) => json!({ "tid": tid, "delivered": "sent" }),
    }
}

async fn list(context: &Context, pattern: &str) -> Outcome<()> {
    let depths = queues::list(&*context.onlooker().await?, pattern).await?;
    if context.json {
        return output::json(&depths);
    }
    let mut table = Table::new(&["QUEUE", "MESSAGES"]);
    depths.iter().for_each(|depth| table.row([depth.queue.to_string(), depth.messages.to_string()]));
    output::raw(table.render().as_bytes())
}

async fn stats(context: &Context, queue: &QueueName) -> Outcome<()> {
    let stats = queues::stats(&*context.onlooker().await?, queue).await?;
    if context.json {
        return output::json(&stats);
    }
    let when = |at: Option<jiff::Timestamp>| at.map_or_else(|| "-".into(), format::time);
    output::raw(
        format!(
            "queue      {}\nmessages   {}\nbytes      {}\noldest     {}\nnewest     {}\n",
            stats.queue,
            stats.messages,
            stats.bytes,
            when(stats.oldest),
            when(stats.newest)
        )
        .as_bytes(),
    )
}

async fn watch(
    context: &Context,
    queue: QueueName,
    new: bool,
    limit: Option<u64>,
    deadline: Option<Instant>,
) -> Outcome<()> {
    let broker = context.watcher().await?;
    let mut left = limit.unwrap_or(u64::MAX);
    let mut watch = Watch::new(queue, if new { now() } else { 0 });
    while left > 0 {
        let wait = deadline.map_or(LONG, |deadline| deadline.saturating_duration_since(Instant::now()).min(LONG));
        let mut messages = watch.next(&*broker, wait).await?;
        if messages.is_empty() && deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            break;
        }
        messages.truncate(usize::try_from(left).unwrap_or(usize::MAX));
        left -= messages.len() as u64;
        if context.json {
            // One message a line: a stream has no end at which an array could be closed.
            messages.iter().try_for_each(output::json)?;
        } else {
            print(&messages)?;
        }
    }
    Ok(())
}

/// The present time as an id.
fn now() -> u64 {
    u64::try_from(jiff::Timestamp::now().as_nanosecond()).unwrap_or(0)
}

async fn broadcast(context: &Context, pattern: &str, message: String) -> Outcome<()> {
    let reached = queues::broadcast(&*context.onlooker().await?, pattern, &body(message)?).await?;
    if context.json {
        return output::json(&reached);
    }
    if reached.is_empty() {
        context.note("no queue with such a name holds anything");
    }
    reached.iter().try_for_each(|queue| output::line(queue.to_string()))
}

/// A message as given, or standard input without the end of its last line.
fn body(given: String) -> Outcome<String> {
    if given != STDIN {
        return Ok(given);
    }
    let mut text = String::new();
    io::stdin()
        .lock()
        .read_to_string(&mut text)
        .map_err(|e| Failure::Usage(format!("cannot read standard input: {e}")))?;
    if text.ends_with('\n') {
        text.pop();
    }
    Ok(text)
}

fn show(context: &Context, messages: &[Message]) -> Outcome<()> {
    if context.json { output::json(&messages) } else { print(messages) }
}

fn print(messages: &[Message]) -> Outcome<()> {
    let text: String = messages.iter().map(|message| format!("{}\n", message.body)).collect();
    output::raw(text.as_bytes())
}

fn tell(context: &Context, what: &str, n: u64) -> Outcome<()> {
    if context.json {
        return output::json(&json!({ what: n }));
    }
    output::line(format!("{what} {}", format::count(n, "message")))
}
