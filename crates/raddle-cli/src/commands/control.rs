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

/// How many commands are in flight: an end may take a while, and the broker commits many writes at
/// once.
pub(super) const AT_ONCE: usize = 64;

/// The outcome of a control command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CommandOutcome {
    /// The broker applied it to a waiting task, or the task has reached this state.
    Became(TaskState),
    /// The worker replied with the state of the task.
    Said(String),
    /// No reply came in time.
    Nothing(UnansweredTask),
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
    /// Collects what is known of a task that did not reply.
    pub(super) async fn of(
        broker: &dyn Broker,
        task: &TaskView,
        word: ControlCommand,
    ) -> Outcome<Self> {
        let is_worker = worker::is_worker(task);
        let finishes = is_worker && word == ControlCommand::Stop;
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

    fn remark(&self, tid: Tid, word: ControlCommand) -> String {
        if self.finishing > 0 {
            let tasks = format::count(self.finishing, "task");
            let instead = format!(
                "'raddle worker stop --kill {tid}' ends it now and gives back what it runs"
            );
            return format!(
                "worker {tid} is finishing {tasks}: wait longer with --timeout, or {instead}"
            );
        }
        let who = if self.is_worker { "worker" } else { "task" };
        format!("{who} {tid} has not answered {word} yet: wait longer with --timeout")
    }
}

pub(super) async fn control(
    context: &Context,
    words: &TaskCommandArgs,
    word: ControlCommand,
) -> Outcome {
    let broker = context.open_read_only().await?;
    let mut report = BulkReport::default();
    let tids = select::select_each(&*broker, &words.tasks, &UNFINISHED).await?;
    let ask_one = async |tid: Outcome<Tid>| {
        let tid = tid?;
        Ok((
            tid,
            ask(&*broker, tid, ControlMessage::new(word), words.timeout.0).await?,
        ))
    };
    let mut answers = pin!(stream::iter(tids.into_iter().map(ask_one)).buffered(AT_ONCE));
    while let Some(answer) = answers.next().await {
        report.add(context, word, answer)?;
    }
    report.end(context)
}

/// The outcomes for several tasks, in the order asked for.
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
        word: ControlCommand,
        answer: Outcome<(Tid, CommandOutcome)>,
    ) -> Outcome<()> {
        let (tid, answer) = match answer {
            Ok(answer) => answer,
            Err(failure) => {
                failure.print(context.json);
                self.code = self.code.max(failure.code());
                return Ok(());
            }
        };
        let (status, state) = match answer {
            CommandOutcome::Became(state) => ("ok", state.to_string()),
            CommandOutcome::Said(state) => ("ok", state),
            CommandOutcome::Nothing(silence) => {
                self.code = self.code.max(TIMED_OUT);
                context.note(silence.remark(tid, word));
                (
                    if silence.finishing > 0 {
                        "finishing"
                    } else {
                        "no answer"
                    },
                    silence.state.to_string(),
                )
            }
        };
        if context.json {
            self.records
                .push(json!({ "tid": tid, "command": word, "status": status, "state": state }));
            return Ok(());
        }
        output::line(format!("{tid} {state}"))
    }

    /// Returns the exit code; prints everything at once with `--json`.
    pub(super) fn end(self, context: &Context) -> Outcome {
        if context.json {
            output::json(&self.records)?;
        }
        Ok(self.code)
    }
}

/// Sends a command and waits: for the end after `STOP` and `KILL`, for a reply otherwise.
pub(super) async fn ask(
    broker: &dyn Broker,
    tid: Tid,
    mut message: ControlMessage,
    patience: Duration,
) -> Outcome<CommandOutcome> {
    let deadline = Instant::now() + patience;
    let before = tid::get_task(broker, tid).await?;
    message.request_id = Some(format!(
        "{}-{}",
        std::process::id(),
        jiff::Timestamp::now().as_nanosecond()
    ));
    if let DeliveryOutcome::Applied(state) = broker.control(tid, message.clone()).await? {
        // Paused is no state of its own, but it is the reply of a paused task.
        let held = !state.is_terminal() && tid::get_task(broker, tid).await?.paused;
        return Ok(if held {
            CommandOutcome::Said("paused".into())
        } else {
            CommandOutcome::Became(state)
        });
    }
    let ends = matches!(message.command, ControlCommand::Stop | ControlCommand::Kill);
    let replies = QueueName::Task(tid, TaskQueue::CtrlOut);
    let (mut news, mut heard) = (TaskWatch::of(broker, tid).await?, 0);
    loop {
        let now = tid::get_task(broker, tid).await?;
        let another_attempt = now.state == TaskState::Created || now.attempt != before.attempt;
        if now.state.is_terminal() || (ends && another_attempt) {
            return Ok(CommandOutcome::Became(now.state));
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(CommandOutcome::Nothing(
                UnansweredTask::of(broker, &now, message.command).await?,
            ));
        }
        let slice = left.min(WATCH_WORKERS);
        let peek = PeekRequest {
            queue: replies.clone(),
            after: heard,
            max: 1000,
            wait: slice,
        };
        tokio::select! {
            changed = news.next(broker, slice) => if !changed? {
                reclaim_if_worker_lost(broker, &now).await?;
            },
            messages = broker.peek(peek), if !ends => {
                let messages = messages?;
                heard = messages.last().map_or(heard, |message| message.id.as_u64());
                let reply = messages
                    .iter()
                    .filter_map(|message| serde_json::from_str::<ControlReply>(&message.body).ok())
                    .find(|reply| reply.request_id == message.request_id);
                if let Some(reply) = reply {
                    return answer(tid, reply);
                }
            }
        }
    }
}

fn answer(tid: Tid, reply: ControlReply) -> Outcome<CommandOutcome> {
    if reply.status == "ok" {
        return Ok(CommandOutcome::Said(reply.state));
    }
    Err(Failure::Usage(format!(
        "task {tid} is {} and will not {}: {}",
        reply.state, reply.command, reply.status
    )))
}
