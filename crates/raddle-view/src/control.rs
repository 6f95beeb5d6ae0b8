//! Control commands to tasks: sends one, and waits for what follows.

use std::time::Duration;

use raddle_broker::{Broker, DeliveryOutcome, PeekRequest};
use raddle_client::{
    explain::{advise_on_worker, describe_worker},
    text::count,
    wait::{TaskWatch, WATCH_WORKERS, reclaim_if_worker_lost},
};
use raddle_model::{
    ControlCommand, ControlMessage, QueueName, TaskState, TaskView, Tid, control::ControlReply,
    queue_name::TaskQueue,
};
use serde::Serialize;
use tokio::time::Instant;

use crate::{
    Error, Result,
    find::{get_task, held_tasks},
};

/// The outcome of a control command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandOutcome {
    /// The broker applied the command to a waiting task, or the task has reached this state.
    Reached(TaskState),
    /// The worker replied with the state of the task.
    Replied(String),
    /// No reply came in time.
    NoReply(UnansweredTask),
}

/// A task that did not reply in time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnansweredTask {
    /// Its current state.
    pub state: TaskState,
    /// Whether it is a worker.
    pub is_worker: bool,
    /// How many tasks a stopping worker still runs.
    pub finishing: u64,
}

/// The outcome of a control command, as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CommandRecord {
    /// The task.
    pub tid: Tid,
    /// The command.
    pub command: ControlCommand,
    /// `ok`, `finishing` or `no answer`.
    pub status: &'static str,
    /// The state of the task now.
    pub state: String,
}

impl CommandOutcome {
    /// The outcome as JSON.
    pub fn record(&self, tid: Tid, command: ControlCommand) -> CommandRecord {
        let (status, state) = match self {
            Self::Reached(state) => ("ok", state.to_string()),
            Self::Replied(state) => ("ok", state.clone()),
            Self::NoReply(task) if task.finishing > 0 => ("finishing", task.state.to_string()),
            Self::NoReply(task) => ("no answer", task.state.to_string()),
        };
        CommandRecord {
            tid,
            command,
            status,
            state,
        }
    }
}

impl UnansweredTask {
    /// Reads the state of a task that did not reply.
    pub async fn read(
        broker: &dyn Broker,
        task: &TaskView,
        command: ControlCommand,
    ) -> Result<Self> {
        let is_worker = task.spec.is_service();
        let finishes = is_worker && command == ControlCommand::Stop;
        let finishing = if finishes {
            held_tasks(broker, task.tid).await?.len() as u64
        } else {
            0
        };
        Ok(Self {
            state: task.state,
            is_worker,
            finishing,
        })
    }

    /// What is known of the task, and what to do.
    pub fn describe(&self, tid: Tid, command: ControlCommand) -> String {
        if self.finishing > 0 {
            let tasks = count(self.finishing, "task");
            let instead = format!(
                "use 'raddle worker stop --kill {tid}' to return its tasks to their queues now"
            );
            return format!(
                "worker {tid} is finishing {tasks}: wait longer with --timeout, or {instead}"
            );
        }
        let noun = if self.is_worker { "worker" } else { "task" };
        format!("{noun} {tid} has not replied to {command}: wait longer with --timeout")
    }
}

/// Sends a command and waits: for the end after `STOP` and `KILL`, for a reply otherwise.
pub async fn send_command(
    broker: &dyn Broker,
    tid: Tid,
    mut message: ControlMessage,
    timeout: Duration,
) -> Result<CommandOutcome> {
    let deadline = Instant::now() + timeout;
    let before = get_task(broker, tid).await?;
    message.request_id = Some(format!(
        "{}-{}",
        std::process::id(),
        jiff::Timestamp::now().as_nanosecond()
    ));
    if let DeliveryOutcome::Applied(state) = broker.control(tid, message.clone()).await? {
        // `paused` is not a state, but it is the reply of a paused task.
        let is_paused = !state.is_terminal() && get_task(broker, tid).await?.paused;
        return Ok(if is_paused {
            CommandOutcome::Replied("paused".into())
        } else {
            CommandOutcome::Reached(state)
        });
    }
    let ends = matches!(message.command, ControlCommand::Stop | ControlCommand::Kill);
    let replies = QueueName::Task(tid, TaskQueue::CtrlOut);
    let (mut watch, mut last_reply) = (TaskWatch::start(broker, tid).await?, 0);
    loop {
        let now = get_task(broker, tid).await?;
        let another_attempt = now.state == TaskState::Created || now.attempt != before.attempt;
        if now.state.is_terminal() || (ends && another_attempt) {
            return Ok(CommandOutcome::Reached(now.state));
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(CommandOutcome::NoReply(
                UnansweredTask::read(broker, &now, message.command).await?,
            ));
        }
        let slice = left.min(WATCH_WORKERS);
        let peek = PeekRequest {
            queue: replies.clone(),
            after: last_reply,
            max: 1000,
            wait: slice,
        };
        tokio::select! {
            changed = watch.next(broker, slice) => if !changed? {
                reclaim_if_worker_lost(broker, &now).await?;
            },
            messages = broker.peek(peek), if !ends => {
                let messages = messages?;
                last_reply = messages.last().map_or(last_reply, |message| message.id.as_u64());
                let reply = messages
                    .iter()
                    .filter_map(|message| serde_json::from_str::<ControlReply>(&message.body).ok())
                    .find(|reply| reply.request_id == message.request_id);
                if let Some(reply) = reply {
                    return parse_reply(tid, reply);
                }
            }
        }
    }
}

fn parse_reply(tid: Tid, reply: ControlReply) -> Result<CommandOutcome> {
    if reply.status == "ok" {
        return Ok(CommandOutcome::Replied(reply.state));
    }
    Err(Error::CommandRefused {
        tid,
        state: reply.state,
        command: reply.command,
        reason: reply.status,
    })
}

/// Refuses a worker where a task is expected.
pub async fn refuse_worker(broker: &dyn Broker, task: &TaskView, done: &'static str) -> Result<()> {
    if !task.spec.is_service() {
        return Ok(());
    }
    let workers = broker.workers().await?;
    let entry = workers.iter().find(|worker| worker.tid == task.tid);
    Err(Error::IsWorker {
        tid: task.tid,
        status: describe_worker(task, entry),
        done,
        advice: advise_on_worker(task.tid, entry),
    })
}
