//! `raddle task explain`: why a task is not running.

use raddle_client::explain::{Explanation, WaitReason, explain_task, title};
use raddle_model::{TaskState, Tid};
use serde::Serialize;

use crate::{args::TaskArg, context::Context, error::Outcome, tid};

pub(super) async fn explain(context: &Context, arg: TaskArg) -> Outcome {
    let broker = context.open_existing().await?;
    let task = tid::find_task(&*broker, arg).await?;
    let Explanation { reason, text, hint } = explain_task(&*broker, &task).await?;
    let record = ExplainRecord {
        tid: task.tid,
        state: task.state,
        explanation: &text,
        hint: hint.as_deref(),
        reason,
    };
    context.show(&record, || {
        let hint = hint
            .as_ref()
            .map(|hint| format!("{hint}\n"))
            .unwrap_or_default();
        format!("{} {text}\n{hint}", title(&task))
    })
}

/// The JSON output.
#[derive(Serialize)]
struct ExplainRecord<'a> {
    tid: Tid,
    state: TaskState,
    explanation: &'a str,
    hint: Option<&'a str>,
    #[serde(flatten)]
    reason: WaitReason,
}
