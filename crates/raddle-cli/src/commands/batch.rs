//! `raddle batch`: tasks that were submitted together.

use std::{collections::BTreeMap, pin::pin, time::Duration};

use futures_util::{StreamExt, stream};
use indicatif::ProgressBar;
use jiff::Timestamp;
use raddle_broker::{BatchSummary, Broker, Error, SummaryDetail, TaskFilter};
use raddle_client::wait::{WATCH_WORKERS, reclaim_if_worker_lost};
use raddle_model::{ControlCommand, ControlMessage, TaskState, Tid};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout_at};

use super::{control::AT_ONCE, delete, retry};
use crate::{
    args::BatchCommand,
    context::Context,
    error::{Failure, Outcome, TASK_FAILED, TIMED_OUT},
    follow::{self, PrintedReasons},
    format::{self, count},
    progress,
    select::{self, FAILED, UNFINISHED, resolve_batch},
    table::{self, Table},
};

/// The shortest pause between two counts of a batch.
const MIN_PAUSE: Duration = Duration::from_millis(200);

pub(super) async fn batch(context: &Context, command: BatchCommand) -> Outcome {
    let broker = context.open_read_only().await?;
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
            let tids = tids_of(broker, &name, &delete::FINISHED).await?;
            delete::delete_all(context, broker, tids).await
        }
    }
}

/// Tasks of a batch by state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts(BTreeMap<TaskState, u64>);

impl Counts {
    pub(super) async fn read(broker: &dyn Broker, name: &str) -> Outcome<Self> {
        let detail = SummaryDetail {
            batch: Some(name.into()),
            ..SummaryDetail::default()
        };
        Ok(Self(broker.summarize(detail).await?.states))
    }

    fn sum(&self, states: &[TaskState]) -> u64 {
        states.iter().filter_map(|state| self.0.get(state)).sum()
    }

    fn total(&self) -> u64 {
        self.0.values().sum()
    }

    pub(super) fn finished(&self) -> u64 {
        self.total() - self.unfinished()
    }

    pub(super) fn unfinished(&self) -> u64 {
        self.sum(&UNFINISHED)
    }

    pub(super) fn failed(&self) -> u64 {
        self.sum(&FAILED)
    }

    /// Shows the counts on a progress bar.
    pub(super) fn show_on(&self, bar: &ProgressBar) {
        bar.set_length(self.total());
        bar.set_position(self.finished());
        let failed = self.failed();
        bar.set_message(if failed > 0 {
            format!(" ({failed} failed)")
        } else {
            String::new()
        });
    }

    pub(super) fn json(&self, name: &str) -> Value {
        let states: BTreeMap<TaskState, u64> = TaskState::ALL
            .into_iter()
            .map(|state| (state, self.0.get(&state).copied().unwrap_or(0)))
            .collect();
        json!({ "batch": name, "tasks": self.total(), "finished": self.finished(), "failed": self.failed(), "states": states })
    }

    fn text(&self) -> String {
        let states: Vec<String> = self
            .0
            .iter()
            .filter(|(_, n)| **n > 0)
            .map(|(s, n)| format!("{n} {s}"))
            .collect();
        states.join(", ")
    }

    /// 0 if all tasks completed.
    pub(super) fn exit_code(&self) -> u8 {
        if self.sum(&[TaskState::Completed]) == self.total() {
            0
        } else {
            TASK_FAILED
        }
    }
}

async fn list(context: &Context, broker: &dyn Broker, limit: usize) -> Outcome {
    let batches = broker
        .summarize(SummaryDetail {
            batches: true,
            ..SummaryDetail::default()
        })
        .await?
        .batches;
    let mut batches: Vec<(String, BatchSummary)> = batches.into_iter().collect();
    batches.sort_by_key(|(_, batch)| std::cmp::Reverse(batch.since));
    let more = batches.len().saturating_sub(limit);
    batches.truncate(limit);
    let mut listed = Vec::new();
    for (name, batch) in batches {
        let counts = Counts::read(broker, &name).await?;
        listed.push((name, batch, counts));
    }
    let record = |(name, batch, counts): &(String, BatchSummary, Counts)| {
        let mut record = counts.json(name);
        record["since"] = json!(batch.since);
        record
    };
    context.show(&listed.iter().map(record).collect::<Vec<_>>(), || {
        let now = Timestamp::now();
        let mut table = Table::new(&["BATCH", "TASKS", "FINISHED", "FAILED", "AGE"]);
        for (name, batch, counts) in &listed {
            table.row([
                name.clone(),
                counts.total().to_string(),
                counts.finished().to_string(),
                counts.failed().to_string(),
                format::age(batch.since, now),
            ]);
        }
        table.render()
    })?;
    if more > 0 && !context.json {
        context.note(format!(
            "these are the newest {limit}: see {more} more with --limit"
        ));
    }
    Ok(0)
}

async fn status(context: &Context, broker: &dyn Broker, name: &str) -> Outcome {
    let name = resolve_batch(broker, name).await?;
    let counts = Counts::read(broker, &name).await?;
    context.show(&counts.json(&name), || {
        let percent = counts.finished() * 100 / counts.total().max(1);
        let mut lines = vec![
            ("batch", name.clone()),
            ("tasks", format!("{}: {}", counts.total(), counts.text())),
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
    refuse_own(broker, &name).await?;
    let waiting = until_finished(context, broker, &name);
    let counts = match deadline {
        None => waiting.await?,
        Some(deadline) => match timeout_at(deadline, waiting).await {
            Ok(counts) => counts?,
            Err(_) => {
                let left = Counts::read(broker, &name).await?.unfinished();
                let hint = format!(
                    "'raddle task list --batch {name} --status created,spawning,running' shows them"
                );
                let left = count(left, "task");
                return Err(Failure::TimedOut(format!(
                    "batch {name} has {left} that did not end yet: {hint}"
                )));
            }
        },
    };
    conclude(context, &name, &counts)
}

/// Prints the counts of a batch, and returns the exit code.
pub(super) fn conclude(context: &Context, name: &str, counts: &Counts) -> Outcome {
    context.show(&counts.json(name), || format!("{name} {}\n", counts.text()))?;
    Ok(counts.exit_code())
}

/// Refuses to wait for a batch that contains the task of this process.
async fn refuse_own(broker: &dyn Broker, name: &str) -> Outcome<()> {
    let Some(own) = crate::spec::own_task() else {
        return Ok(());
    };
    let filter = TaskFilter {
        among: Some(vec![own]),
        batch: Some(name.into()),
        ..TaskFilter::default()
    };
    match broker.tasks(filter).await?.first() {
        Some(task) => Err(follow::recursive(task.tid)),
        None => Ok(()),
    }
}

async fn until_finished(context: &Context, broker: &dyn Broker, name: &str) -> Outcome<Counts> {
    let mut counts = Counts::read(broker, name).await?;
    let bar = progress::finished(counts.total(), !context.json && !context.quiet);
    let mut printed = PrintedReasons::default();
    while counts.unfinished() > 0 {
        counts.show_on(&bar);
        // One waiting task explains the others.
        let waiting = waiting_task(broker, name).await?;
        let changed = next_count(broker, name, &counts);
        counts = match waiting {
            Some(tid) => follow::explain_while(context, broker, tid, &mut printed, changed).await?,
            None => changed.await?,
        };
    }
    Ok(counts)
}

async fn waiting_task(broker: &dyn Broker, name: &str) -> Outcome<Option<Tid>> {
    let states = vec![TaskState::Created];
    let filter = TaskFilter {
        states,
        batch: Some(name.into()),
        limit: 1,
        ..TaskFilter::default()
    };
    Ok(broker.tasks(filter).await?.first().map(|task| task.tid))
}

/// Waits until the counts of a batch change.
pub(super) async fn next_count(
    broker: &dyn Broker,
    name: &str,
    before: &Counts,
) -> Outcome<Counts> {
    let mut seen = broker.last_event().await?;
    loop {
        let now = Counts::read(broker, name).await?;
        if now != *before {
            return Ok(now);
        }
        sleep(MIN_PAUSE).await;
        if broker
            .events(Some(seen), None, 1, WATCH_WORKERS)
            .await?
            .is_empty()
        {
            take_back(broker, name).await?;
        }
        seen = broker.last_event().await?;
    }
}

/// Reclaims tasks of a batch from workers that are gone. Live workers do this by themselves.
async fn take_back(broker: &dyn Broker, name: &str) -> Outcome<()> {
    let states = vec![TaskState::Spawning, TaskState::Running];
    let filter = TaskFilter {
        states,
        batch: Some(name.into()),
        limit: 1,
        ..TaskFilter::default()
    };
    for task in broker.tasks(filter).await? {
        reclaim_if_worker_lost(broker, &task).await?;
    }
    Ok(())
}

async fn retry_failed(context: &Context, broker: &dyn Broker, name: &str) -> Outcome {
    let name = resolve_batch(broker, name).await?;
    let failed = tids_of(broker, &name, &FAILED).await?;
    if failed.is_empty() {
        context.note(format!("no task of batch {name} has failed"));
    }
    retry::resubmit_all(context, broker, failed, false).await
}

/// Stops the unfinished tasks, and waits for their end.
async fn cancel(context: &Context, broker: &dyn Broker, name: &str, patience: Duration) -> Outcome {
    let name = resolve_batch(broker, name).await?;
    let deadline = Instant::now() + patience;
    stop_all(broker, &name).await?;
    let ended = async {
        let mut counts = Counts::read(broker, &name).await?;
        while counts.unfinished() > 0 {
            counts = next_count(broker, &name, &counts).await?;
        }
        Ok::<_, Failure>(counts)
    };
    match timeout_at(deadline, ended).await {
        Ok(counts) => {
            let counts = counts?;
            context.show(&counts.json(&name), || {
                format!("{name} {}\n", counts.text())
            })
        }
        Err(_) => {
            let left = count(Counts::read(broker, &name).await?.unfinished(), "task");
            context.note(format!(
                "{left} of batch {name} did not end yet: wait with 'raddle batch wait {name}'"
            ));
            Ok(TIMED_OUT)
        }
    }
}

/// Sends `STOP` to all unfinished tasks of a batch.
pub(super) async fn stop_all(broker: &dyn Broker, name: &str) -> Outcome<()> {
    tell_all(broker, name, ControlCommand::Stop).await
}

/// Kills all tasks of a batch that are not finished.
pub(super) async fn kill_all(broker: &dyn Broker, name: &str) -> Outcome<()> {
    tell_all(broker, name, ControlCommand::Kill).await
}

async fn tell_all(broker: &dyn Broker, name: &str, word: ControlCommand) -> Outcome<()> {
    let tids = tids_of(broker, name, &UNFINISHED).await?;
    let tell = |tid| broker.control(tid, ControlMessage::new(word));
    let mut told = pin!(stream::iter(tids.into_iter().map(tell)).buffered(AT_ONCE));
    while let Some(told) = told.next().await {
        match told {
            // The task has ended meanwhile.
            Ok(_) | Err(Error::Finished(..) | Error::NotFound(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// The tasks of a batch in these states, the oldest first.
async fn tids_of(broker: &dyn Broker, name: &str, states: &[TaskState]) -> Outcome<Vec<Tid>> {
    let mut tids = Vec::new();
    let filter = TaskFilter {
        states: states.to_vec(),
        batch: Some(name.into()),
        ..TaskFilter::default()
    };
    select::for_each(broker, filter, |task| tids.push(task.tid)).await?;
    tids.reverse();
    Ok(tids)
}
