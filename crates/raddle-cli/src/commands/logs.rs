//! `raddle logs`: the output of a task so far.

use std::time::Duration;

use raddle_broker::{Broker, OutputChunk, OutputStream};
use raddle_client::wait::{LONG, TaskFollower};
use raddle_model::Tid;
use raddle_view::task::{copy_output, logged_output_losses};
use serde_json::json;

use crate::{
    args::LogsArgs,
    context::Context,
    error::{Failure, Outcome},
    follow::{self, PrintedReasons},
    output, tid,
};

pub(super) async fn logs(context: &Context, args: &LogsArgs) -> Outcome {
    let broker = context.open_read_only().await?;
    let task = tid::find_task(&*broker, args.tid).await?;
    if args.follow {
        follow::refuse_own(&*broker, task.tid).await?;
    }
    let printer = Printer {
        context,
        only: only(args),
    };
    match args.attempt {
        Some(attempt) if attempt > task.attempt => {
            let had = crate::format::count(task.attempt.into(), "attempt");
            Err(Failure::Usage(format!(
                "task {} has had {had}: there is no attempt {attempt}",
                task.tid
            )))
        }
        Some(attempt) => printer.one(&*broker, task.tid, attempt).await,
        None if args.follow => {
            let (printing, mut printed) = (
                printer.all(&*broker, task.tid, true),
                PrintedReasons::default(),
            );
            follow::explain_while(context, &*broker, task.tid, &mut printed, printing).await
        }
        None => printer.all(&*broker, task.tid, false).await,
    }?;
    Ok(0)
}

fn only(args: &LogsArgs) -> Option<OutputStream> {
    match (args.stdout, args.stderr) {
        (true, _) => Some(OutputStream::Stdout),
        (_, true) => Some(OutputStream::Stderr),
        _ => None,
    }
}

struct Printer<'a> {
    context: &'a Context,
    only: Option<OutputStream>,
}

impl Printer<'_> {
    /// All attempts, in order.
    async fn all(&self, broker: &dyn Broker, tid: Tid, follows: bool) -> Outcome<()> {
        let mut follower = TaskFollower::new(tid);
        loop {
            let progress = follower
                .next(broker, if follows { LONG } else { Duration::ZERO })
                .await?;
            progress
                .output
                .iter()
                .try_for_each(|chunk| self.print(chunk))?;
            follow::lost(&progress).for_each(|what| self.context.note(what));
            let nothing_yet = !follows && progress.output.is_empty() && progress.events.is_empty();
            if progress.done.is_some() || nothing_yet {
                return Ok(());
            }
        }
    }

    async fn one(&self, broker: &dyn Broker, tid: Tid, attempt: u32) -> Outcome<()> {
        for stream in OutputStream::BOTH {
            let print = |bytes: &[u8]| {
                self.print(&OutputChunk {
                    attempt,
                    stream,
                    bytes: bytes.into(),
                })
            };
            copy_output(broker, tid, attempt, stream, print).await?;
        }
        logged_output_losses(broker, tid, attempt)
            .await?
            .iter()
            .for_each(|lost| self.context.note(lost));
        Ok(())
    }

    fn print(&self, chunk: &OutputChunk) -> Outcome<()> {
        if self.only.is_some_and(|only| only != chunk.stream) {
            return Ok(());
        }
        if self.context.json {
            let text = String::from_utf8_lossy(&chunk.bytes);
            return output::json(
                &json!({ "attempt": chunk.attempt, "stream": chunk.stream, "text": text }),
            );
        }
        // A single stream is the data, and goes to stdout.
        if self.only.is_some() {
            output::raw(&chunk.bytes)
        } else {
            output::pass_on(chunk.stream, &chunk.bytes)
        }
    }
}
