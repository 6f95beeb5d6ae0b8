//! `raddle run`: runs a task, prints its output as it comes, and exits with its code.

use std::{convert::Infallible, ops::ControlFlow, path::Path, time::Duration};

use indicatif::ProgressBar;
use raddle_broker::Broker;
use raddle_model::{Target, TaskState, TaskView, Tid};
use raddle_view::{
    exit_code,
    task::{exit_remark, result_record, return_value},
};
use raddle_worker::run::{RunCommand, RunEvent, RunOptions, RunOutcome, run_task};
use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};

use super::{each, submit};
use crate::{
    args::RunArgs,
    context::Context,
    error::{Failure, INTERRUPTED, KILLED, Outcome},
    follow::{self, PrintedReasons},
    interrupt::{Interrupts, Suspensions},
    output, progress, spec, table,
};

/// Capacity of the channel of signals; a run does not distinguish more.
const MAX_SIGNALS: usize = 8;
/// How long `raddle run` reads standard input before it prints a note.
const STDIN_NOTE_AFTER: Duration = Duration::from_secs(2);

pub(super) async fn run(context: &Context, args: &RunArgs) -> Outcome {
    let mut spec = spec::from_words(&args.target, &args.command);
    let reads_lines = args.items.each_line.as_deref() == Some(Path::new("-"));
    if matches!(spec.target, Target::Command(_)) && !args.spec.stdin && !reads_lines {
        spec.stdin = piped_stdin(context).await?;
    }
    let spec = spec::complete_spec(spec, &args.spec)?;
    if args.items.each_line.is_some() || args.items.array.is_some() {
        return each::run_each(context, args, spec).await;
    }
    if args.no_wait {
        context.check_shared()?;
        return submit::submit_one(context, spec).await;
    }
    let inline = !args.no_inline && args.spec.queue.is_none();
    if !inline {
        // No worker can reach a broker in this process.
        context.check_shared()?;
    }
    // Before the task exists, so that no signal is lost.
    let (mut interrupts, suspensions) = (Interrupts::install()?, Suspensions::install()?);
    let broker = tokio::select! {
        biased;
        broker = context.open_broker() => broker?,
        () = interrupts.next() => return Ok(interrupted(context)),
    };
    // A command shows its progress in its output.
    let shows_progress =
        !context.json && !context.quiet && !matches!(spec.target, Target::Command(_));
    let (submitted, submission) = oneshot::channel();
    let mut display = RunDisplay {
        context,
        bar: progress::of_task(shows_progress),
        submitted: Some(submitted),
        failure: None,
    };
    let explaining = explain_wait(context, &*broker, submission, display.bar.clone());
    let options = RunOptions {
        task: spec::new_task(spec),
        progress: !display.bar.is_hidden(),
        inline,
    };
    let (sender, commands) = mpsc::channel(MAX_SIGNALS);
    let outcome = tokio::select! {
        outcome = run_task(broker.clone(), options, commands, |event| display.handle_event(event)) => outcome?,
        () = forward_signals(interrupts, suspensions, sender) => unreachable!("`forward_signals` never returns"),
        never = explaining => match never {},
    };
    let RunDisplay { bar, failure, .. } = display;
    drop(bar);
    let task = match outcome {
        RunOutcome::Finished(task) => *task,
        RunOutcome::NotSubmitted => return Ok(interrupted(context)),
        RunOutcome::Recursive(tid) => return Err(follow::recursive_wait(tid)),
        RunOutcome::Abandoned => return Ok(KILLED),
        _ => return Ok(INTERRUPTED),
    };
    match failure {
        Some(Failure::ClosedPipe) => return Ok(0),
        Some(failure) => return Err(failure),
        None => {}
    }
    if context.json {
        output::print_json(&result_record(&*broker, &task).await?)?;
    } else {
        if let Some(value) = return_value(task.report.as_ref()) {
            output::print_json(value)?;
        }
        if let Some(remark) = exit_remark(task.tid, &task.spec, task.report.as_ref()) {
            context.note(remark);
        }
    }
    Ok(exit_code::of_task(task.state, task.report.as_ref()))
}

/// Reads piped standard input to its end: the task gets all of it at its start.
async fn piped_stdin(context: &Context) -> Outcome<Option<String>> {
    if !spec::is_stdin_piped() {
        return Ok(None);
    }
    let mut reading = tokio::task::spawn_blocking(spec::read_piped_stdin);
    let read = match timeout(STDIN_NOTE_AFTER, &mut reading).await {
        Ok(read) => read,
        Err(_) => {
            context.note(
                "waiting for the end of standard input; use '</dev/null' if the task needs no input",
            );
            reading.await
        }
    };
    read.expect("reading standard input does not panic")
}

pub(super) fn interrupted(context: &Context) -> u8 {
    context.note("interrupted before the task was submitted");
    INTERRUPTED
}

/// Prints why the task does not start. Not after its start: `run` itself pauses the task when it is
/// suspended.
async fn explain_wait(
    context: &Context,
    broker: &dyn Broker,
    submission: oneshot::Receiver<Tid>,
    bar: ProgressBar,
) -> Infallible {
    let Ok(tid) = submission.await else {
        return std::future::pending().await;
    };
    let waits = |task: &TaskView| task.state == TaskState::Created;
    let mut printed = PrintedReasons::default();
    follow::announce_wait(broker, tid, &mut printed, waits, |line| {
        bar.suspend(|| context.note(line))
    })
    .await
}

async fn forward_signals(
    mut interrupts: Interrupts,
    mut suspensions: Suspensions,
    sender: mpsc::Sender<RunCommand>,
) {
    loop {
        let command = tokio::select! {
            () = interrupts.next() => RunCommand::Interrupt,
            () = suspensions.next() => RunCommand::Suspend,
        };
        // Further signals change nothing.
        let _ = sender.try_send(command);
    }
}

/// Prints the events of a run.
struct RunDisplay<'a> {
    context: &'a Context,
    bar: ProgressBar,
    /// Receives the id of the task.
    submitted: Option<oneshot::Sender<Tid>>,
    /// Why its output is no longer printed.
    failure: Option<Failure>,
}

impl RunDisplay<'_> {
    fn handle_event(&mut self, event: RunEvent<'_>) -> ControlFlow<()> {
        let note = match event {
            RunEvent::Output(..) if self.context.json => return ControlFlow::Continue(()),
            RunEvent::Output(stream, bytes) => {
                self.failure = self.bar.suspend(|| output::forward(stream, bytes)).err();
                let is_unread = self.failure.is_some();
                return if is_unread {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                };
            }
            RunEvent::Progress(progress) => {
                self.bar
                    .set_position(progress.percent.unwrap_or(0.0) as u64);
                self.bar.set_message(table::printable(&progress.message));
                return ControlFlow::Continue(());
            }
            RunEvent::Submitted(tid) => {
                // Without a receiver the run is about to end.
                let _ = self.submitted.take().map(|submitted| submitted.send(tid));
                return ControlFlow::Continue(());
            }
            RunEvent::Existing(tid) => {
                format!("task {tid} already has this key: following that task")
            }
            RunEvent::OutputLost(lost) => lost.into(),
            RunEvent::Stopping(tid) => format!("stopping task {tid}; interrupt again to kill it"),
            RunEvent::Killing(tid) => format!("killing task {tid}"),
            RunEvent::Leaving(tid) => format!("task {tid} continues without this command"),
            RunEvent::Requeueing(tid) => {
                format!("returning task {tid} to its queue, as its spec says")
            }
            RunEvent::Requeued(tid) => format!("task {tid} is back in its queue, as its spec says"),
        };
        self.bar.suspend(|| self.context.note(note));
        ControlFlow::Continue(())
    }
}
