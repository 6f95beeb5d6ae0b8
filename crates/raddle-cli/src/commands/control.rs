//! `raddle task stop|kill|pause|resume|ping`: a word to tasks, and what came of it.

use std::{pin::pin, time::Duration};

use futures_util::{StreamExt, stream};
use raddle_broker::{Broker, Delivered, Peek};
use raddle_core::{Control, QueueName, State, TaskView, Tid, Word, control::Reply, queue_name::Port};
use raddle_fabric::wait::{News, WATCH_WORKERS, take_from_the_dead};
use serde_json::json;
use tokio::time::Instant;

use crate::{
    args::Words,
    context::Context,
    error::{Failure, Outcome, TIMED_OUT},
    format, output,
    select::{self, UNFINISHED},
    tid, worker,
};

/// How many tasks are told something at the same time: an end may take a while, and the broker commits many writes at once.
pub(super) const AT_ONCE: usize = 64;

/// What came of a word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The broker obeyed for a task that waits, or the task has come to this state.
    Became(State),
    /// Whoever runs the task answered with its state.
    Said(String),
    /// Nobody answered in time.
    Nothing(Silence),
}

/// The task that has not answered in time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Silence {
    /// The state it is still in.
    state: State,
    is_worker: bool,
    /// How many tasks a worker that was told to stop is finishing.
    finishing: u64,
}

impl Silence {
    /// What there is to know of a task that has not answered this word.
    pub(super) async fn of(broker: &dyn Broker, task: &TaskView, word: Word) -> Outcome<Self> {
        let is_worker = worker::is_worker(task);
        let finishes = is_worker && word == Word::Stop;
        let finishing = if finishes { worker::hand(broker, task.tid).await?.len() as u64 } else { 0 };
        Ok(Self { state: task.state, is_worker, finishing })
    }

    fn remark(&self, tid: Tid, word: Word) -> String {
        if self.finishing > 0 {
            let tasks = format::count(self.finishing, "task");
            let instead = format!("'raddle worker stop --kill {tid}' ends it now and gives back what it runs");
            return format!("worker {tid} is finishing {tasks}: wait longer with --timeout, or {instead}");
        }
        let who = if self.is_worker { "worker" } else { "task" };
        format!("{who} {tid} has not answered {word} yet: wait longer with --timeout")
    }
}

pub(super) async fn control(context: &Context, words: &Words, word: Word) -> Outcome {
    let broker = context.onlooker().await?;
    let mut report = Report::default();
    let tids = select::select_each(&*broker, &words.tasks, &UNFINISHED).await?;
    let ask_one = async |tid: Outcome<Tid>| {
        let tid = tid?;
        Ok((tid, ask(&*broker, tid, Control::new(word), words.timeout.0).await?))
    };
    let mut answers = pin!(stream::iter(tids.into_iter().map(ask_one)).buffered(AT_ONCE));
    while let Some(answer) = answers.next().await {
        report.add(context, word, answer)?;
    }
    report.end(context)
}

/// What became of several, in the order asked for.
#[derive(Default)]
pub(super) struct Report {
    records: Vec<serde_json::Value>,
    code: u8,
}

impl Report {
    /// Notes what became of one, and shows it.
    pub(super) fn add(&mut self, context: &Context, word: Word, answer: Outcome<(Tid, Answer)>) -> Outcome<()> {
        let (tid, answer) = match answer {
            Ok(answer) => answer,
            Err(failure) => {
                failure.print(context.json);
                self.code = self.code.max(failure.code());
                return Ok(());
            }
        };
        let (status, state) = match answer {
            Answer::Became(state) => ("ok", state.to_string()),
            Answer::Said(state) => ("ok", state),
            Answer::Nothing(silence) => {
                self.code = self.code.max(TIMED_OUT);
                context.note(silence.remark(tid, word));
                (if silence.finishing > 0 { "finishing" } else { "no answer" }, silence.state.to_string())
            }
        };
        if context.json {
            self.records.push(json!({ "tid": tid, "command": word, "status": status, "state": state }));
            return Ok(());
        }
        output::line(format!("{tid} {state}"))
    }

    /// The exit code; with `--json`, all of it at once.
    pub(super) fn end(self, context: &Context) -> Outcome {
        if context.json {
            output::json(&self.records)?;
        }
        Ok(self.code)
    }
}

/// Sends a word and waits for what comes of it: for `STOP` and `KILL` the end, for the others a reply.
pub(super) async fn ask(broker: &dyn Broker, tid: Tid, mut message: Control, patience: Duration) -> Outcome<Answer> {
    let deadline = Instant::now() + patience;
    let before = tid::view(broker, tid).await?;
    message.request_id = Some(format!("{}-{}", std::process::id(), jiff::Timestamp::now().as_nanosecond()));
    if let Delivered::Applied(state) = broker.control(tid, message.clone()).await? {
        // Being held back is no state of its own, but it is what a task answers with while it runs.
        let held = !state.is_terminal() && tid::view(broker, tid).await?.paused;
        return Ok(if held { Answer::Said("paused".into()) } else { Answer::Became(state) });
    }
    let ends = matches!(message.command, Word::Stop | Word::Kill);
    let replies = QueueName::Task(tid, Port::CtrlOut);
    let (mut news, mut heard) = (News::of(broker, tid).await?, 0);
    loop {
        let now = tid::view(broker, tid).await?;
        let another_attempt = now.state == State::Created || now.attempt != before.attempt;
        if now.state.is_terminal() || (ends && another_attempt) {
            return Ok(Answer::Became(now.state));
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(Answer::Nothing(Silence::of(broker, &now, message.command).await?));
        }
        let slice = left.min(WATCH_WORKERS);
        let peek = Peek { queue: replies.clone(), after: heard, max: 1000, wait: slice };
        tokio::select! {
            changed = news.next(broker, slice) => if !changed? {
                take_from_the_dead(broker, &now).await?;
            },
            messages = broker.look(peek), if !ends => {
                let messages = messages?;
                heard = messages.last().map_or(heard, |message| message.id.as_u64());
                let reply = messages
                    .iter()
                    .filter_map(|message| serde_json::from_str::<Reply>(&message.body).ok())
                    .find(|reply| reply.request_id == message.request_id);
                if let Some(reply) = reply {
                    return answer(tid, reply);
                }
            }
        }
    }
}

fn answer(tid: Tid, reply: Reply) -> Outcome<Answer> {
    if reply.status == "ok" {
        return Ok(Answer::Said(reply.state));
    }
    Err(Failure::Usage(format!("task {tid} is {} and will not {}: {}", reply.state, reply.command, reply.status)))
}
