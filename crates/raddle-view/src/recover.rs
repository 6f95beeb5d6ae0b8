//! Recovers stuck tasks.

use std::time::Duration;

use raddle_broker::Broker;
use raddle_client::orphan_processes;
use raddle_model::{ControlCommand, ControlMessage, TaskState, TaskView, Tid};
use serde_json::{Value, json};

use crate::{
    Error, Result,
    control::{CommandOutcome, refuse_worker, send_command},
};

/// How a task was recovered.
#[derive(Debug, PartialEq, Eq)]
pub enum RecoverAction {
    /// The task was paused, and is resumed.
    Resumed,
    /// The task was finished, and was submitted again under this id.
    Resubmitted(Tid),
    /// The task was reclaimed from a dead worker.
    Reclaimed,
    /// The worker released the task.
    Requeued,
    /// The task ended before its worker could release it.
    Ended(TaskState),
    /// The task waits for a worker.
    Nothing,
}

/// Recovers a stuck task: the step depends on its state.
pub async fn recover_task(
    broker: &dyn Broker,
    task: &TaskView,
    timeout: Duration,
    force: bool,
) -> Result<RecoverAction> {
    refuse_worker(broker, task, "recovered").await?;
    if task.state == TaskState::Completed && !force {
        return Err(Error::Completed(task.tid));
    }
    if task.state.is_terminal() {
        return Ok(RecoverAction::Resubmitted(
            broker.resubmit(task.tid, false).await?,
        ));
    }
    if task.paused {
        send_command(
            broker,
            task.tid,
            ControlMessage::new(ControlCommand::Resume),
            timeout,
        )
        .await?;
        return Ok(RecoverAction::Resumed);
    }
    if task.state == TaskState::Created {
        return Ok(RecoverAction::Nothing);
    }
    if is_owned(broker, task).await? {
        let release = ControlMessage {
            requeue: true,
            ..ControlMessage::new(ControlCommand::Stop)
        };
        match send_command(broker, task.tid, release, timeout).await? {
            CommandOutcome::NoReply(_) if is_owned(broker, task).await? => {
                return Err(Error::WorkerSilent(task.tid));
            }
            CommandOutcome::NoReply(_) => {}
            answer => return Ok(action_after_release(&answer)),
        }
    }
    orphan_processes::kill_orphans_of_reclaimed(&broker.reclaim().await?).await;
    Ok(RecoverAction::Reclaimed)
}

/// The outcome for a task whose worker was asked to release it, and replied.
fn action_after_release(answer: &CommandOutcome) -> RecoverAction {
    match answer {
        CommandOutcome::Reached(state) if state.is_terminal() => RecoverAction::Ended(*state),
        _ => RecoverAction::Requeued,
    }
}

/// Whether the owner of the task is alive.
async fn is_owned(broker: &dyn Broker, task: &TaskView) -> Result<bool> {
    Ok(broker
        .workers()
        .await?
        .iter()
        .any(|worker| Some(worker.tid) == task.worker))
}

impl RecoverAction {
    /// The step as JSON.
    pub fn record(&self, tid: Tid) -> Value {
        let new = match self {
            Self::Resubmitted(new) => Some(new),
            _ => None,
        };
        json!({ "tid": tid, "action": self.as_str(), "new_tid": new })
    }

    /// The step in one word.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Resumed => "resumed",
            Self::Resubmitted(_) => "resubmitted",
            Self::Reclaimed => "reclaimed",
            Self::Requeued => "requeued",
            Self::Ended(_) => "ended",
            Self::Nothing => "none",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_that_ended_was_not_requeued() {
        for ended in [
            TaskState::Completed,
            TaskState::Failed,
            TaskState::Timeout,
            TaskState::Cancelled,
            TaskState::Killed,
        ] {
            assert_eq!(
                action_after_release(&CommandOutcome::Reached(ended)),
                RecoverAction::Ended(ended)
            );
        }
        for again in [TaskState::Created, TaskState::Spawning, TaskState::Running] {
            assert_eq!(
                action_after_release(&CommandOutcome::Reached(again)),
                RecoverAction::Requeued
            );
        }
    }
}
