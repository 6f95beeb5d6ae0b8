//! `raddle task recover`: recovers a stuck task.

use std::time::Duration;

use raddle_view::recover::{RecoverAction, recover_task};

use crate::{args::TaskArg, context::Context, error::Outcome, tid};

pub(super) async fn recover(
    context: &Context,
    arg: TaskArg,
    timeout: Duration,
    force: bool,
) -> Outcome {
    let broker = context.open_existing().await?;
    let task = tid::find_task(&*broker, arg).await?;
    let action = recover_task(&*broker, &task, timeout, force).await?;
    let record = action.record(task.tid);
    context.show(&record, || {
        let became = match action {
            RecoverAction::Resubmitted(new) => format!("resubmitted as {new}"),
            RecoverAction::Ended(state) => {
                context
                    .note("the task has ended meanwhile: submit it again with 'raddle task retry'");
                state.to_string()
            }
            RecoverAction::Nothing => {
                context.note("the task is not stuck: see 'raddle task explain'");
                "waiting".into()
            }
            _ => action.as_str().into(),
        };
        format!("{} {became}\n", task.tid)
    })
}
