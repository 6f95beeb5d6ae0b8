//! Queues by name, on any engine.
//!
//! Engines store messages, and keep tasks, events and workers in tables of their own. This module
//! maps the documented queue names to both: `T<tid>.inbox`, `raddle.tasks.log` and others are views
//! of records, messages to a control queue are applied, and requests to a manager become tasks.
//! Views can be peeked, not taken: a view that could be consumed would be a second way to lose a
//! task.

mod counts;
mod pages;
mod requests;
mod views;
mod watch;

use std::time::Duration;

use jiff::Timestamp;
use raddle_model::{
    ControlMessage, QueueName, TaskView, Tid, WorkerEntry,
    control::ParseControlError,
    queue_name::{ManagerQueue, SystemQueue, TaskQueue},
};
use serde::Serialize;

use crate::{
    Broker, DeliveryOutcome, Error, Message, QueueSize, Result, SummaryDetail, TaskFilter,
    matches_pattern,
};

pub use counts::{QueueCounts, TaskCounts, list_counts};
pub use requests::submit_requests;
pub use watch::Watch;

/// The queue of the audit trail.
pub const AUDIT_QUEUE: &str = "raddle.audit";
/// What the names of the queues of `raddle web` begin with: tokens, sign-in codes, and keys of
/// requests. They hold secrets or hashes of secrets.
pub const WEB_QUEUES: &str = "raddle.web.";

/// The page size for reading a whole queue.
const PAGE: u32 = 1000;

/// The outcome of writing a message to a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WriteOutcome {
    /// Stored as a message with this id.
    Stored(Tid),
    /// A control command, applied to this task or delivered to its worker.
    Control(Tid, DeliveryOutcome),
}

/// The size and age of a queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct QueueStats {
    /// The queue.
    pub queue: QueueName,
    /// Its unfinished tasks; `None` if tasks cannot be submitted to it.
    pub tasks: Option<TaskCounts>,
    /// The number of messages.
    pub messages: u64,
    /// Their total size in bytes.
    pub bytes: u64,
    /// When the oldest was written.
    pub oldest: Option<Timestamp>,
    /// When the newest was written.
    pub newest: Option<Timestamp>,
}

impl QueueStats {
    fn add(&mut self, message: &Message) {
        let written = time_of(message.id);
        self.messages += 1;
        self.bytes += message.body.len() as u64;
        self.oldest = self.oldest.into_iter().chain(written).min();
        self.newest = self.newest.max(written);
    }
}

/// Takes up to `max` messages, oldest first; waits for the first.
pub async fn read(
    broker: &dyn Broker,
    queue: &QueueName,
    max: u32,
    wait: Duration,
) -> Result<Vec<Message>> {
    refuse_view(queue, "read")?;
    // Try stored messages first, so that a record that is there permanently does not hide them.
    let taken = broker.take(queue.clone(), max, Duration::ZERO).await?;
    if !taken.is_empty() {
        return Ok(taken);
    }
    refuse_records(broker, queue, "read").await?;
    broker.take(queue.clone(), max, wait).await
}

/// Reads up to `max` messages, oldest first, without taking them.
pub async fn peek(broker: &dyn Broker, queue: &QueueName, max: u32) -> Result<Vec<Message>> {
    views::read_contents(broker, queue, 0, max).await
}

/// Writes messages to a queue. Messages to a control queue are applied or delivered one by one;
/// requests to a manager, or to the inbox of a worker, become tasks.
pub async fn write(
    broker: &dyn Broker,
    queue: &QueueName,
    bodies: Vec<String>,
) -> Result<Vec<WriteOutcome>> {
    refuse_view(queue, "written to")?;
    let mut written = Vec::new();
    if let QueueName::Task(tid, TaskQueue::Inbox) = queue
        && let Some(submitted) = requests::submit_to_worker(broker, *tid, &bodies).await?
    {
        return Ok(submitted.into_iter().map(WriteOutcome::Stored).collect());
    }
    match (queue, queue.desk()) {
        (QueueName::Task(tid, TaskQueue::CtrlIn), _) => {
            for message in parse_all(&bodies)? {
                written.push(WriteOutcome::Control(
                    *tid,
                    broker.control(*tid, message).await?,
                ));
            }
        }
        (_, Some((kind, ManagerQueue::Requests))) => {
            let submitted = submit_requests(broker, kind, bodies, None).await?;
            return Ok(submitted.into_iter().map(WriteOutcome::Stored).collect());
        }
        (QueueName::System(SystemQueue::Control), desk)
        | (_, desk @ Some((_, ManagerQueue::Control))) => {
            let matches =
                |entry: &WorkerEntry| desk.is_none_or(|(kind, _)| is_manager(entry, kind));
            for message in parse_all(&bodies)? {
                written.extend(send_to_workers(broker, &message, matches).await?);
            }
        }
        _ => written.extend(
            broker
                .put(queue.clone(), bodies)
                .await?
                .into_iter()
                .map(WriteOutcome::Stored),
        ),
    }
    Ok(written)
}

/// The number of entries of [`AUDIT_QUEUE`] that [`purge`](crate::Tasks::purge) keeps, the newest.
pub const AUDIT_KEPT: u32 = 100_000;

/// Moves up to `max` stored messages to the end of another queue, in one transaction. They get new
/// ids. Returns how many.
pub async fn move_messages(
    broker: &dyn Broker,
    from: &QueueName,
    to: &QueueName,
    max: u32,
) -> Result<u64> {
    refuse_view(from, "moved")?;
    refuse_view(to, "written to")?;
    if is_control(to) {
        return Err(Error::ControlQueue(to.clone()));
    }
    let moved = broker.move_messages(from.clone(), to.clone(), max).await?;
    if moved == 0 {
        refuse_records(broker, from, "moved").await?;
    }
    Ok(moved)
}

/// The non-empty queues whose names match `pattern`, by name.
pub async fn list(broker: &dyn Broker, pattern: &str) -> Result<Vec<QueueSize>> {
    let summary = broker
        .summarize(SummaryDetail {
            messages: true,
            ..SummaryDetail::default()
        })
        .await?;
    let mut queue_sizes = summary.messages;
    for system in SystemQueue::ALL
        .into_iter()
        .filter(|system| system.is_view())
    {
        let queue = QueueName::System(system);
        if matches_pattern(pattern, &queue.to_string()) {
            let messages = match system {
                SystemQueue::Dead => summary.dead,
                _ => stats(broker, &queue).await?.messages,
            };
            queue_sizes.insert(queue, messages);
        }
    }
    for (queue, ready) in summary.ready {
        if let Ok(queue) = queue.parse::<QueueName>()
            && matches!(queue.desk(), Some((_, ManagerQueue::Requests)))
        {
            queue_sizes.insert(queue, ready);
        }
    }
    if may_name_tasks(pattern) {
        let count = |task: TaskView| {
            let queues = views::queues_of(&task).map(|port| QueueName::Task(task.tid, port));
            for queue in queues.filter(|queue| matches_pattern(pattern, &queue.to_string())) {
                *queue_sizes.entry(queue).or_default() += 1;
            }
        };
        pages::each(
            broker,
            TaskFilter {
                services: true,
                ..TaskFilter::default()
            },
            count,
        )
        .await?;
    }
    let mut named: Vec<_> = queue_sizes
        .into_iter()
        .map(|(queue, messages)| (queue.to_string(), queue, messages))
        .collect();
    named.retain(|(name, _, messages)| *messages > 0 && matches_pattern(pattern, name));
    named.sort();
    Ok(named
        .into_iter()
        .map(|(_, queue, messages)| QueueSize { queue, messages })
        .collect())
}

/// The size and age of a queue.
pub async fn stats(broker: &dyn Broker, queue: &QueueName) -> Result<QueueStats> {
    let tasks = counts::count_tasks(broker, queue).await?;
    let mut stats = QueueStats {
        queue: queue.clone(),
        tasks,
        messages: 0,
        bytes: 0,
        oldest: None,
        newest: None,
    };
    let shown = views::tasks_in(queue);
    let shows_tasks = !shown.is_empty();
    for views::Shown { filter, message } in shown {
        pages::each(broker, filter, |task| stats.add(&message(&task))).await?;
    }
    // A view of workers is built anew for each read, so read it once.
    let shows_log = *queue == QueueName::System(SystemQueue::Log)
        || matches!(queue.desk(), Some((_, ManagerQueue::Results)));
    let at_once = if is_view(queue) && !shows_log {
        u32::MAX
    } else {
        PAGE
    };
    let mut after = 0;
    loop {
        let page = match shows_tasks {
            true => views::stored(broker, queue, after, at_once).await?,
            false => views::read_contents(broker, queue, after, at_once).await?,
        };
        let Some(last) = page.last() else {
            return Ok(stats);
        };
        after = last.id.as_u64();
        page.iter().for_each(|message| stats.add(message));
    }
}

/// Deletes a queue's stored messages. Returns how many.
pub async fn delete(broker: &dyn Broker, queue: &QueueName) -> Result<u64> {
    refuse_view(queue, "deleted")?;
    let mut removed = 0;
    loop {
        let taken = broker
            .take(queue.clone(), PAGE, Duration::ZERO)
            .await?
            .len();
        removed += taken as u64;
        if taken < PAGE as usize {
            break;
        }
    }
    if removed == 0 {
        refuse_records(broker, queue, "deleted").await?;
    }
    Ok(removed)
}

/// Writes to every queue whose name matches `pattern`, and returns their names.
///
/// A queue exists while it holds something. The control queue of an unfinished task always exists,
/// but only matches if the pattern ends in `.ctrl_in`: `*` must not be able to stop everything.
pub async fn broadcast(broker: &dyn Broker, pattern: &str, body: &str) -> Result<Vec<QueueName>> {
    let mut queues: Vec<QueueName> = list(broker, pattern)
        .await?
        .into_iter()
        .map(|depth| depth.queue)
        .collect();
    queues.retain(|queue| !is_view(queue) && !is_control(queue));
    if pattern.ends_with(".ctrl_in") {
        let mut control = Vec::new();
        pages::each(broker, views::unfinished(), |task| {
            control.push(QueueName::Task(task.tid, TaskQueue::CtrlIn))
        })
        .await?;
        queues.extend(
            control
                .into_iter()
                .rev()
                .filter(|queue| matches_pattern(pattern, &queue.to_string())),
        );
    }
    let workers = QueueName::System(SystemQueue::Control);
    if pattern == workers.to_string() {
        queues.push(workers);
    }
    let mut reached = Vec::new();
    for queue in queues {
        match write(broker, &queue, vec![body.into()]).await {
            Ok(_) => reached.push(queue),
            // The task has ended since it was listed.
            Err(Error::NotFound(_) | Error::Finished(..)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(reached)
}

/// Parses all control messages, so that none is sent if one is invalid.
fn parse_all(bodies: &[String]) -> Result<Vec<ControlMessage>> {
    Ok(bodies
        .iter()
        .map(|body| body.parse())
        .collect::<Result<_, ParseControlError>>()?)
}

async fn send_to_workers(
    broker: &dyn Broker,
    message: &ControlMessage,
    matches: impl Fn(&WorkerEntry) -> bool,
) -> Result<Vec<WriteOutcome>> {
    let mut written = Vec::new();
    for worker in broker.workers().await?.into_iter().filter(matches) {
        match broker.control(worker.tid, message.clone()).await {
            Ok(delivered) => written.push(WriteOutcome::Control(worker.tid, delivered)),
            // The worker has left since it was listed.
            Err(Error::NotFound(_) | Error::Finished(..)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(written)
}

/// Whether a worker is a manager of this type.
fn is_manager(entry: &WorkerEntry, kind: &str) -> bool {
    entry.info.is_manager() && entry.info.kind == kind
}

/// Whether the queue only shows records.
fn is_view(queue: &QueueName) -> bool {
    matches!(queue, QueueName::System(system) if system.is_view())
        || matches!(
            queue.desk(),
            Some((_, ManagerQueue::Results | ManagerQueue::Status))
        )
}

/// Whether messages to the queue are applied.
fn is_control(queue: &QueueName) -> bool {
    matches!(
        queue,
        QueueName::Task(_, TaskQueue::CtrlIn) | QueueName::System(SystemQueue::Control)
    ) || matches!(
        queue.desk(),
        Some((_, ManagerQueue::Control | ManagerQueue::Requests))
    )
}

fn refuse_view(queue: &QueueName, what: &'static str) -> Result<()> {
    if is_view(queue) {
        Err(Error::View(queue.clone(), what.into()))
    } else {
        Ok(())
    }
}

/// Fails if the queue shows a record at the moment: an empty result would be wrong.
async fn refuse_records(broker: &dyn Broker, queue: &QueueName, what: &'static str) -> Result<()> {
    match views::read_contents(broker, queue, 0, 1).await?.is_empty() {
        true => Ok(()),
        false => Err(Error::View(queue.clone(), what.into())),
    }
}

/// Whether a pattern can match the name of a task's queue. If not, tasks need not be listed.
fn may_name_tasks(pattern: &str) -> bool {
    pattern.starts_with('T') || pattern.starts_with('*')
}

fn time_of(id: Tid) -> Option<Timestamp> {
    Timestamp::from_nanosecond(id.unix_nanos().into()).ok()
}
