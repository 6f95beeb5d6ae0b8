//! All about one task: its record, why it waits, its attempts and its events.

use jiff::Timestamp;
use raddle_broker::Broker;
use raddle_client::explain::{WaitReason, explain_task};
use raddle_model::{TaskEvent, TaskQuery, TaskView, Tid};
use serde::{Serialize, Serializer};

use crate::{
    Result,
    events::{AttemptSpan, attempts, task_events},
    find::get_task_or_worker,
    task::task_record,
    tasks::{TaskList, TaskListOptions, list_tasks},
};

/// How many tasks are looked at for children.
const MAX_LOOKED_AT: u64 = 5000;
/// The most children that are listed.
const MAX_CHILDREN: u32 = 100;

/// A task or worker, with its history.
#[derive(Clone, Debug, Serialize)]
pub struct TaskDetail {
    /// The record.
    #[serde(serialize_with = "as_record")]
    pub task: TaskView,
    /// Why it is not running, or that it is.
    pub explain: TaskExplanation,
    /// Its attempts, the first one first.
    pub attempts: Vec<AttemptSpan>,
    /// Its events, the first one first.
    pub events: Vec<TaskEvent>,
    /// The tasks that it submitted, the newest first.
    pub children: TaskList,
    /// The tasks that it holds, if it is a worker without a task record.
    pub holds: Vec<Tid>,
    /// When this was read.
    pub read_at: Timestamp,
}

/// Why a task is not running, as `raddle task explain --json` prints it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TaskExplanation {
    /// The task.
    pub tid: Tid,
    /// Its state.
    pub state: raddle_model::TaskState,
    /// The reason as text.
    pub explanation: String,
    /// The fix.
    pub hint: Option<String>,
    /// The reason.
    #[serde(flatten)]
    pub reason: WaitReason,
}

impl TaskExplanation {
    /// Explains why a task is not running.
    pub async fn read(broker: &dyn Broker, task: &TaskView) -> Result<Self> {
        let explanation = explain_task(broker, task).await?;
        Ok(Self {
            tid: task.tid,
            state: task.state,
            explanation: explanation.text,
            hint: explanation.hint,
            reason: explanation.reason,
        })
    }
}

impl TaskDetail {
    /// Reads a task or worker.
    pub async fn read(broker: &dyn Broker, tid: Tid) -> Result<Self> {
        let (task, holds) = get_task_or_worker(broker, tid).await?;
        let events = task_events(broker, tid).await?;
        let query: TaskQuery = format!("parent:{tid}").parse().expect("an id is a value");
        let options = TaskListOptions {
            limit: MAX_CHILDREN,
            max_looked_at: MAX_LOOKED_AT,
            ..TaskListOptions::default()
        };
        Ok(Self {
            explain: TaskExplanation::read(broker, &task).await?,
            attempts: attempts(&events),
            events,
            children: list_tasks(broker, &query, &options).await?,
            holds,
            read_at: Timestamp::now(),
            task,
        })
    }
}

fn as_record<S: Serializer>(task: &TaskView, serializer: S) -> Result<S::Ok, S::Error> {
    task_record(task).serialize(serializer)
}
