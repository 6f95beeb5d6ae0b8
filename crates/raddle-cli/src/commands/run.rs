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

/// More signals than a run distinguishes.
const COMMANDS: usize = 8;
/// How long `raddle run` reads standard input before it prints a note.
const STDIN_PATIENCE: Duration = Duration::from_secs(2);

pub(super) async fn run(context: &Context, args: &RunArgs) -> Outcome {
    let mut spec = spec::of_words(&args.target, &args.command);
    let reads_lines = args.items.each_line.as_deref() == Some(Path::new("-"));
    if matches!(spec.target, Target::Command(_)) && !args.spec.stdin && !reads_lines {
        spec.stdin = piped_stdin(context).await?;
    }
    let spec = spec::complete(spec, &args.spec)?;
    if args.items.each_line.is_some() || args.items.array.is_some() {
        return each::run_each(context, args, spec).await;
    }
    if args.no_wait {
        context.check_shared()?;
        return submit::one(context, spec).await;
    }
    let inline = !args.no_inline && args.spec.queue.is_none();
    if !inline {
        // No worker can reach a broker in this process.
        context.check_shared()?;
    }
    // Before the task exists: a signal in between must be forwarded.
    let (mut interrupts, suspensions) = (Interrupts::catch()?, Suspensions::catch()?);
    let broker = tokio::select! {
        biased;
        broker = context.broker() => broker?,
        () = interrupts.next() => return Ok(interrupted(context)),
    };
    // A command reports its progress by its output.
    let shows_progress =
        !context.json && !context.quiet && !matches!(spec.target, Target::Command(_));
    let (submitted, submission) = oneshot::channel();
    let mut screen = Screen {
        context,
        bar: progress::of_task(shows_progress),
        submitted: Some(submitted),
        failure: None,
    };
    let explaining = explain_wait(context, &*broker, submission, screen.bar.clone());
    let options = RunOptions {
        task: spec::submission(spec),
        progress: !screen.bar.is_hidden(),
        inline,
    };
    let (tell, commands) = mpsc::channel(COMMANDS);
    let outcome = tokio::select! {
        outcome = run_task(broker.clone(), options, commands, |event| screen.show(event)) => outcome?,
        () = pass_on_signals(interrupts, suspensions, tell) => unreachable!("signals come for as long as it runs"),
        never = explaining => match never {},
    };
    let Screen { bar, failure, .. } = screen;
    drop(bar);
    let task = match outcome {
        RunOutcome::Finished(task) => *task,
        RunOutcome::NotSubmitted => return Ok(interrupted(context)),
        RunOutcome::Recursive(tid) => return Err(follow::recursive(tid)),
        RunOutcome::Abandoned => return Ok(KILLED),
        _ => return Ok(INTERRUPTED),
    };
    match failure {
        Some(Failure::ClosedPipe) => return Ok(0),
        Some(failure) => return Err(failure),
        None => {}
    }
    if context.json {
        output::json(&result_record(&*broker, &task).await?)?;
    } else {
        if let Some(value) = return_value(task.report.as_ref()) {
            output::json(value)?;
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
    let read = match timeout(STDIN_PATIENCE, &mut reading).await {
        Ok(read) => read,
        Err(_) => {
            context.note(
                "waiting for standard input to end; give the task no input with '</dev/null'",
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

/// Prints why the task does not run. Not after it has begun: `run` itself pauses it when it is
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

async fn pass_on_signals(
    mut interrupts: Interrupts,
    mut suspensions: Suspensions,
    tell: mpsc::Sender<RunCommand>,
) {
    loop {
        let command = tokio::select! {
            () = interrupts.next() => RunCommand::Interrupt,
            () = suspensions.next() => RunCommand::Suspend,
        };
        // Further signals change nothing.
        let _ = tell.try_send(command);
    }
}

/// Prints the events of a run.
struct Screen<'a> {
    context: &'a Context,
    bar: ProgressBar,
    /// Receives the id of the task.
    submitted: Option<oneshot::Sender<Tid>>,
    /// Why its output is no longer printed.
    failure: Option<Failure>,
}

impl Screen<'_> {
    fn show(&mut self, event: RunEvent<'_>) -> ControlFlow<()> {
        let note = match event {
            RunEvent::Output(..) if self.context.json => return ControlFlow::Continue(()),
            RunEvent::Output(stream, bytes) => {
                self.failure = self.bar.suspend(|| output::pass_on(stream, bytes)).err();
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
                format!("task {tid} has this key already: following that one")
            }
            RunEvent::OutputLost(lost) => lost.into(),
            RunEvent::Stopping(tid) => format!("stopping task {tid}; once more to kill it"),
            RunEvent::Killing(tid) => format!("killing task {tid}"),
            RunEvent::Leaving(tid) => format!("leaving task {tid} to its end"),
            RunEvent::Requeueing(tid) => {
                format!("putting task {tid} back into its queue, as its spec asks")
            }
            RunEvent::Requeued(tid) => format!("task {tid} is back in its queue, as its spec asks"),
        };
        self.bar.suspend(|| self.context.note(note));
        ControlFlow::Continue(())
    }
}
