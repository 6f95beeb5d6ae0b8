//! `raddle task explain`: why a task is not running.

use raddle_client::explain::title;
use raddle_view::explain::ExplainRecord;

use crate::{args::TaskArg, context::Context, error::Outcome, tid};

pub(super) async fn explain(context: &Context, arg: TaskArg) -> Outcome {
    let broker = context.open_existing().await?;
    let task = tid::find_task(&*broker, arg).await?;
    let record = ExplainRecord::read(&*broker, &task).await?;
    context.show(&record, || {
        let hint = record
            .hint
            .as_ref()
            .map(|hint| format!("{hint}\n"))
            .unwrap_or_default();
        format!("{} {}\n{hint}", title(&task), record.explanation)
    })
}
