//! `raddle task explain`: why a task is not running.

use raddle_client::explain::title;
use raddle_view::task_detail::TaskExplanation;

use crate::{args::TaskArg, context::Context, error::Outcome, tid};

pub(super) async fn explain(context: &Context, arg: TaskArg) -> Outcome {
    let broker = context.open_existing().await?;
    let task = tid::find_task(&*broker, arg).await?;
    let explained = TaskExplanation::read(&*broker, &task).await?;
    context.show(&explained, || {
        let hint = explained.hint.as_ref();
        let hint = hint.map(|hint| format!("{hint}\n")).unwrap_or_default();
        format!("{} {}\n{hint}", title(&task), explained.explanation)
    })
}
