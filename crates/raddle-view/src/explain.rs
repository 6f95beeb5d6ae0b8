//! Why a task is not running.

use raddle_broker::Broker;
use raddle_client::explain::{Explanation, WaitReason, explain_task};
use raddle_model::{TaskState, TaskView, Tid};
use serde::Serialize;

use crate::Result;

/// Why a task is not running, and what to do.
#[derive(Serialize)]
pub struct ExplainRecord {
    /// The task.
    pub tid: Tid,
    /// Its state.
    pub state: TaskState,
    /// The reason in words.
    pub explanation: String,
    /// What to do.
    pub hint: Option<String>,
    /// The reason.
    #[serde(flatten)]
    pub reason: WaitReason,
}

impl ExplainRecord {
    /// Finds out why a task is not running.
    pub async fn read(broker: &dyn Broker, task: &TaskView) -> Result<Self> {
        let Explanation { reason, text, hint } = explain_task(broker, task).await?;
        Ok(Self {
            tid: task.tid,
            state: task.state,
            explanation: text,
            hint,
            reason,
        })
    }
}
