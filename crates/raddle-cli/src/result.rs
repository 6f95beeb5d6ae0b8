//! Prints the output and the return value of a task.

use raddle_broker::{Broker, OutputStream};
use raddle_model::TaskView;
use raddle_view::task::{copy_output, lost_output, return_value};

use crate::{context::Context, error::Outcome, output};

/// Prints the output of a task's last attempt, and its return value as one line of JSON.
pub(crate) async fn print(broker: &dyn Broker, task: &TaskView) -> Outcome<()> {
    for stream in OutputStream::BOTH {
        copy_output(broker, task.tid, task.attempt, stream, |bytes| {
            output::forward(stream, bytes)
        })
        .await?;
    }
    return_value(task.report.as_ref()).map_or(Ok(()), output::print_json)
}

/// Prints to stderr which output of the last attempt was not kept.
pub(crate) async fn note_lost_output(
    context: &Context,
    broker: &dyn Broker,
    task: &TaskView,
) -> Outcome<()> {
    lost_output(broker, task)
        .await?
        .iter()
        .for_each(|lost| context.note(lost));
    Ok(())
}
