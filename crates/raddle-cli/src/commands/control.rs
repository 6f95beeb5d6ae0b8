//! `raddle task stop|kill|pause|resume|ping`: sends control commands to tasks, and reports the
//! outcome.

use std::{pin::pin, time::Duration};

use futures_util::{StreamExt, stream};
use raddle_broker::{Broker, DeliveryOutcome, PeekRequest};
use raddle_client::wait::{TaskWatch, WATCH_WORKERS, reclaim_if_worker_lost};
use raddle_model::{
    ControlCommand, ControlMessage, QueueName, TaskState, TaskView, Tid, control::ControlReply,
    queue_name::TaskQueue,
};
use raddle_view::{find::held_tasks, select::UNFINISHED};
use serde_json::json;
use tokio::time::Instant;

use crate::{
    args::TaskCommandArgs,
    context::Context,
    error::{Failure, Outcome, TIMED_OUT},
    format, output, select, tid, worker,
};

/// How many commands are in flight: a stop may take a while, and the broker commits many writes in
/// one transaction.
pub(super) const MAX_IN_FLIGHT: usize = 64;

/// The outcome of a control command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CommandOutcome {
    /// The broker applied the command to a waiting task, or the task has reached this state.
    Reached(TaskState),
    /// The worker replied with the state of the task.
    Replied(String),
    /// No reply came in time.
    NoReply(UnansweredTask),
}

/// A task that did not reply in time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UnansweredTask {
    /// Its current state.
    state: TaskState,
    is_worker: bool,
    /// How many tasks a stopping worker still runs.
    finishing: u64,
}

impl UnansweredTask {
    /// Reads the state of a task that did not reply.
    pub(super) async fn read(
        broker: &dyn Broker,
        task: &TaskView,
        command: ControlCommand,
    ) -> Outcome<Self> {
        let is_worker = worker::is_worker(task);
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

    fn describe(&self, tid: Tid, command: ControlCommand) -> String {
        if self.finishing > 0 {
            let tasks = format::count(self.finishing, "task");
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

pub(super) async fn control(
    context: &Context,
    args: &TaskCommandArgs,
    command: ControlCommand,
) -> Outcome {
    let broker = context.open_existing().await?;
    let mut report = BulkReport::default();
    let tids = select::select_each(&*broker, &args.tasks, &UNFINISHED).await?;
    let send_one = async |tid: Outcome<Tid>| {
        let tid = tid?;
        Ok((
            tid,
            send_command(&*broker, tid, ControlMessage::new(command), args.timeout.0).await?,
        ))
    };
    let mut answers = pin!(stream::iter(tids.into_iter().map(send_one)).buffered(MAX_IN_FLIGHT));
    while let Some(answer) = answers.next().await {
        report.add(context, command, answer)?;
    }
    report.finish(context)
}

/// The outcomes for several tasks, in the order of the arguments.
#[derive(Default)]
pub(super) struct BulkReport {
    records: Vec<serde_json::Value>,
    code: u8,
}

impl BulkReport {
    /// Adds and prints the outcome for one task.
    pub(super) fn add(
        &mut self,
        context: &Context,
        command: ControlCommand,
        answer: Outcome<(Tid, CommandOutcome)>,
    ) -> Outcome<()> {
        let (tid, answer) = match answer {
            Ok(answer) => answer,
            Err(failure) => {
                failure.print(context.json);
                self.code = self.code.max(failure.exit_code());
                return Ok(());
            }
        };
        let (status, state) = match answer {
            CommandOutcome::Reached(state) => ("ok", state.to_string()),
            CommandOutcome::Replied(state) => ("ok", state),
            CommandOutcome::NoReply(unanswered) => {
                self.code = self.code.max(TIMED_OUT);
                context.note(unanswered.describe(tid, command));
                (
                    if unanswered.finishing > 0 {
                        "finishing"
                    } else {
                        "no answer"
                    },
                    unanswered.state.to_string(),
                )
            }
        };
        if context.json {
            self.records
                .push(json!({ "tid": tid, "command": command, "status": status, "state": state }));
            return Ok(());
        }
        output::print_line(format!("{tid} {state}"))
    }

    /// Returns the exit code; prints everything at once with `--json`.
    pub(super) fn finish(self, context: &Context) -> Outcome {
        if context.json {
            output::print_json(&self.records)?;
        }
        Ok(self.code)
    }
}

/// Sends a command and waits: for the end after `STOP` and `KILL`, for a reply otherwise.
pub(super) async fn send_command(
    broker: &dyn Broker,
    tid: Tid,
    mut message: ControlMessage,
    timeout: Duration,
) -> Outcome<CommandOutcome> {
    let deadline = Instant::now() + timeout;
    let before = tid::get_task(broker, tid).await?;
    message.request_id = Some(format!(
        "{}-{}",
        std::process::id(),
        jiff::Timestamp::now().as_nanosecond()
    ));
    if let DeliveryOutcome::Applied(state) = broker.control(tid, message.clone()).await? {
        // `paused` is not a state, but it is the reply of a paused task.
        let is_paused = !state.is_terminal() && tid::get_task(broker, tid).await?.paused;
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
        let now = tid::get_task(broker, tid).await?;
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

fn parse_reply(tid: Tid, reply: ControlReply) -> Outcome<CommandOutcome> {
    if reply.status == "ok" {
        return Ok(CommandOutcome::Replied(reply.state));
    }
    Err(Failure::Usage(format!(
        "task {tid} is {} and will not {}: {}",
        reply.state, reply.command, reply.status
    )))
}
