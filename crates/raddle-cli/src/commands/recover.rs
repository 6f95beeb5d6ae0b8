//! `raddle task recover`: recovers a stuck task.

use std::time::Duration;

use raddle_broker::Broker;
use raddle_client::orphan_processes;
use raddle_model::{ControlCommand, ControlMessage, TaskState, TaskView, Tid};
use serde_json::json;

use super::control::{CommandOutcome, send_command};
use crate::{
    args::TaskArg,
    context::Context,
    error::{Failure, Outcome},
    tid, worker,
};

/// How a task was recovered.
#[derive(Debug, PartialEq, Eq)]
enum RecoverAction {
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

pub(super) async fn recover(
    context: &Context,
    arg: TaskArg,
    timeout: Duration,
    force: bool,
) -> Outcome {
    let broker = context.open_existing().await?;
    let task = tid::find_task(&*broker, arg).await?;
    worker::refuse_worker(&*broker, &task, "recovered").await?;
    if task.state == TaskState::Completed && !force {
        let again = format!(
            "run it again with 'raddle task recover --force {}'",
            task.tid
        );
        return Err(Failure::Usage(format!(
            "task {} is completed: {again}",
            task.tid
        )));
    }
    let action = recover_task(&*broker, &task, timeout).await?;
    let new = match action {
        RecoverAction::Resubmitted(new) => Some(new),
        _ => None,
    };
    let record = json!({ "tid": task.tid, "action": action.as_str(), "new_tid": new });
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

async fn recover_task(
    broker: &dyn Broker,
    task: &TaskView,
    timeout: Duration,
) -> Outcome<RecoverAction> {
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
                let hint = "kill it with 'raddle task kill', or its worker with 'raddle worker stop --kill'";
                return Err(Failure::TimedOut(format!(
                    "the worker of task {} does not reply: {hint}",
                    task.tid
                )));
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
async fn is_owned(broker: &dyn Broker, task: &TaskView) -> Outcome<bool> {
    Ok(broker
        .workers()
        .await?
        .iter()
        .any(|worker| Some(worker.tid) == task.worker))
}

impl RecoverAction {
    fn as_str(&self) -> &'static str {
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
