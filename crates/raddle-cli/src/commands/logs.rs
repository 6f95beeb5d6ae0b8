//! `raddle logs`: the output of a task so far.

use std::time::Duration;

use raddle_broker::{Broker, OutputChunk, OutputStream};
use raddle_client::wait::{MAX_WAIT, TaskFollower};
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
    let broker = context.open_existing().await?;
    let task = tid::find_task(&*broker, args.tid).await?;
    if args.follow {
        follow::check_not_within(&*broker, task.tid).await?;
    }
    let printer = Printer {
        context,
        stream: selected_stream(args),
    };
    match args.attempt {
        Some(attempt) if attempt > task.attempt => {
            let count = crate::format::count(task.attempt.into(), "attempt");
            Err(Failure::Usage(format!(
                "task {} has had {count}: there is no attempt {attempt}",
                task.tid
            )))
        }
        Some(attempt) => printer.print_attempt(&*broker, task.tid, attempt).await,
        None if args.follow => {
            let (printing, mut printed) = (
                printer.print_attempts(&*broker, task.tid, true),
                PrintedReasons::default(),
            );
            follow::explain_while(context, &*broker, task.tid, &mut printed, printing).await
        }
        None => printer.print_attempts(&*broker, task.tid, false).await,
    }?;
    Ok(0)
}

fn selected_stream(args: &LogsArgs) -> Option<OutputStream> {
    match (args.stdout, args.stderr) {
        (true, _) => Some(OutputStream::Stdout),
        (_, true) => Some(OutputStream::Stderr),
        _ => None,
    }
}

struct Printer<'a> {
    context: &'a Context,
    /// The only stream to print, if one is selected.
    stream: Option<OutputStream>,
}

impl Printer<'_> {
    /// Prints all attempts, in order.
    async fn print_attempts(&self, broker: &dyn Broker, tid: Tid, follows: bool) -> Outcome<()> {
        let mut follower = TaskFollower::new(tid);
        loop {
            let progress = follower
                .next(broker, if follows { MAX_WAIT } else { Duration::ZERO })
                .await?;
            progress
                .output
                .iter()
                .try_for_each(|chunk| self.print_chunk(chunk))?;
            follow::lost_output_notes(&progress).for_each(|what| self.context.note(what));
            let is_at_end = !follows && progress.output.is_empty() && progress.events.is_empty();
            if progress.done.is_some() || is_at_end {
                return Ok(());
            }
        }
    }

    /// Prints one attempt.
    async fn print_attempt(&self, broker: &dyn Broker, tid: Tid, attempt: u32) -> Outcome<()> {
        for stream in OutputStream::BOTH {
            let print = |bytes: &[u8]| {
                self.print_chunk(&OutputChunk {
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

    fn print_chunk(&self, chunk: &OutputChunk) -> Outcome<()> {
        if self.stream.is_some_and(|stream| stream != chunk.stream) {
            return Ok(());
        }
        if self.context.json {
            let text = String::from_utf8_lossy(&chunk.bytes);
            return output::print_json(
                &json!({ "attempt": chunk.attempt, "stream": chunk.stream, "text": text }),
            );
        }
        // A single stream is the data, and goes to stdout.
        if self.stream.is_some() {
            output::print_raw(&chunk.bytes)
        } else {
            output::forward(chunk.stream, &chunk.bytes)
        }
    }
}
