//! `raddle task stop|kill|pause|resume|ping`: sends control commands to tasks, and reports the
//! outcome.

use std::pin::pin;

use futures_util::{StreamExt, stream};
use raddle_model::{ControlCommand, ControlMessage, Tid};
use raddle_view::{
    control::{CommandOutcome, CommandRecord, send_command},
    select::UNFINISHED,
};

use crate::{
    args::TaskCommandArgs,
    context::Context,
    error::{Outcome, TIMED_OUT},
    output, select,
};

/// How many commands are in flight: a stop may take a while, and the broker commits many writes in
/// one transaction.
pub(super) const MAX_IN_FLIGHT: usize = 64;

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
    records: Vec<CommandRecord>,
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
        if let CommandOutcome::NoReply(unanswered) = &answer {
            self.code = self.code.max(TIMED_OUT);
            context.note(unanswered.describe(tid, command));
        }
        let record = answer.record(tid, command);
        if context.json {
            self.records.push(record);
            return Ok(());
        }
        output::print_line(format!("{tid} {}", record.state))
    }

    /// Returns the exit code; prints everything at once with `--json`.
    pub(super) fn finish(self, context: &Context) -> Outcome {
        if context.json {
            output::print_json(&self.records)?;
        }
        Ok(self.code)
    }
}
