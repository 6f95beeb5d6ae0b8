//! `raddle run`: a task, its output as it comes, and its exit code.

use std::ops::ControlFlow;

use raddle_core::Target;
use raddle_fabric::run::{FinishedTask, RunCommand, RunEvent, RunOptions, RunOutcome, run_task};
use tokio::sync::mpsc;

use super::submit;
use crate::{
    args::RunArgs,
    context::Context,
    error::{Failure, INTERRUPTED, KILLED, Outcome},
    follow,
    interrupt::{Interrupts, Suspensions},
    output,
    progress::TaskProgress,
    result, spec, tid,
};

/// More signals than a run can tell apart.
const COMMANDS: usize = 8;

pub(super) async fn run(context: &Context, args: &RunArgs) -> Outcome {
    let spec = spec::complete(spec::of_words(&args.target, &args.command), &args.spec)?;
    if args.no_wait {
        return submit::one(context, spec).await;
    }
    // Before the task exists: a signal in between has to be passed on.
    let (mut interrupts, suspensions) = (Interrupts::catch()?, Suspensions::catch()?);
    let broker = tokio::select! {
        biased;
        broker = context.broker() => broker?,
        () = interrupts.next() => return Ok(interrupted(context)),
    };
    // A command reports its progress by what it prints.
    let shows_progress = !context.json && !context.quiet() && !matches!(spec.target, Target::Command(_));
    let mut screen = Screen { context, bar: TaskProgress::start(shows_progress), failure: None };
    let options = RunOptions { task: spec::submission(spec), progress: screen.bar.is_shown() };
    let (tell, commands) = mpsc::channel(COMMANDS);
    let outcome = tokio::select! {
        outcome = run_task(broker.clone(), options, commands, |event| screen.show(event)) => outcome?,
        () = pass_on_signals(interrupts, suspensions, tell) => unreachable!("signals come for as long as it runs"),
    };
    let Screen { bar, failure, .. } = screen;
    drop(bar);
    let FinishedTask { tid, spec, state, report } = match outcome {
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
        output::json(&result::result_json(&*broker, &tid::view(&*broker, tid).await?).await?)?;
    } else if let Some(remark) = result::remark(tid, &spec, report.as_ref()) {
        context.note(remark);
    }
    Ok(result::exit_code(state, report.as_ref()))
}

fn interrupted(context: &Context) -> u8 {
    context.note("interrupted before the task was submitted");
    INTERRUPTED
}

async fn pass_on_signals(mut interrupts: Interrupts, mut suspensions: Suspensions, tell: mpsc::Sender<RunCommand>) {
    loop {
        let command = tokio::select! {
            () = interrupts.next() => RunCommand::Interrupt,
            () = suspensions.next() => RunCommand::Suspend,
        };
        // One more than a run can tell apart changes nothing.
        let _ = tell.try_send(command);
    }
}

/// Where the user sees the task.
struct Screen<'a> {
    context: &'a Context,
    bar: TaskProgress,
    /// Why its output is no longer shown.
    failure: Option<Failure>,
}

impl Screen<'_> {
    fn show(&mut self, event: RunEvent<'_>) -> ControlFlow<()> {
        let note = match event {
            RunEvent::Output(..) if self.context.json => return ControlFlow::Continue(()),
            RunEvent::Output(stream, bytes) => {
                self.failure = self.bar.aside(|| output::pass_on(stream, bytes)).err();
                let is_unread = self.failure.is_some();
                return if is_unread { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
            }
            RunEvent::Progress(progress) => {
                self.bar.set(progress);
                return ControlFlow::Continue(());
            }
            RunEvent::Existing(tid) => format!("task {tid} has this key already: following that one"),
            RunEvent::OutputLost(lost) => lost.into(),
            RunEvent::OutputExpired(bytes) => format!("{bytes} bytes of its output have expired before they were read"),
            RunEvent::Stopping(tid) => format!("stopping task {tid}; once more to kill it"),
            RunEvent::Killing(tid) => format!("killing task {tid}"),
            RunEvent::Leaving(tid) => format!("leaving task {tid} to its end"),
            RunEvent::Requeueing(tid) => format!("putting task {tid} back into its queue, as its spec asks"),
            RunEvent::Requeued(tid) => format!("task {tid} is back in its queue, as its spec asks"),
        };
        self.bar.aside(|| self.context.note(note));
        ControlFlow::Continue(())
    }
}
