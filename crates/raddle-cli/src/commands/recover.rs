//! `raddle task recover`: makes a stuck task run again.

use std::time::Duration;

use raddle_broker::Broker;
use raddle_client::orphan_processes;
use raddle_model::{ControlCommand, ControlMessage, TaskState, TaskView, Tid};
use serde_json::json;

use super::control::{CommandOutcome, ask};
use crate::{
    args::TaskArg,
    context::Context,
    error::{Failure, Outcome},
    tid, worker,
};

/// The recovery that was done.
#[derive(Debug, PartialEq, Eq)]
enum RecoverAction {
    /// The task was paused, and is resumed.
    Resumed,
    /// The task was finished, and was submitted again under this id.
    Resubmitted(Tid),
    /// The task was reclaimed from a worker that is gone.
    Reclaimed,
    /// Its worker released it.
    Requeued,
    /// It ended before its worker could release it.
    Ended(TaskState),
    /// It waits for a worker.
    Nothing,
}

pub(super) async fn recover(
    context: &Context,
    arg: TaskArg,
    patience: Duration,
    force: bool,
) -> Outcome {
    let broker = context.open_read_only().await?;
    let task = tid::find_task(&*broker, arg).await?;
    worker::refuse(&*broker, &task, "recovered").await?;
    if task.state == TaskState::Completed && !force {
        let again = format!("'raddle task recover --force {}' runs it again", task.tid);
        return Err(Failure::Usage(format!(
            "task {} is completed, there is nothing to recover: {again}",
            task.tid
        )));
    }
    let deed = act(&*broker, &task, patience).await?;
    let new = match deed {
        RecoverAction::Resubmitted(new) => Some(new),
        _ => None,
    };
    let record = json!({ "tid": task.tid, "action": deed.as_str(), "new_tid": new });
    context.show(&record, || {
        let became = match deed {
            RecoverAction::Resubmitted(new) => format!("resubmitted as {new}"),
            RecoverAction::Ended(state) => {
                context.note("it has ended meanwhile: 'raddle task retry' submits it again");
                state.to_string()
            }
            RecoverAction::Nothing => {
                context.note("it is not stuck: 'raddle task explain' says what it waits for");
                "waiting".into()
            }
            _ => deed.as_str().into(),
        };
        format!("{} {became}\n", task.tid)
    })
}

async fn act(broker: &dyn Broker, task: &TaskView, patience: Duration) -> Outcome<RecoverAction> {
    if task.state.is_terminal() {
        return Ok(RecoverAction::Resubmitted(
            broker.resubmit(task.tid, false).await?,
        ));
    }
    if task.paused {
        ask(
            broker,
            task.tid,
            ControlMessage::new(ControlCommand::Resume),
            patience,
        )
        .await?;
        return Ok(RecoverAction::Resumed);
    }
    if task.state == TaskState::Created {
        return Ok(RecoverAction::Nothing);
    }
    if is_owned(broker, task).await? {
        let give_back = ControlMessage {
            requeue: true,
            ..ControlMessage::new(ControlCommand::Stop)
        };
        match ask(broker, task.tid, give_back, patience).await? {
            CommandOutcome::Nothing(_) if is_owned(broker, task).await? => {
                let hint = "kill it with 'raddle task kill', or its worker with 'raddle worker stop --kill'";
                return Err(Failure::TimedOut(format!(
                    "task {}: its worker does not answer: {hint}",
                    task.tid
                )));
            }
            CommandOutcome::Nothing(_) => {}
            answer => return Ok(given_back(&answer)),
        }
    }
    orphan_processes::kill_orphans_of_reclaimed(&broker.reclaim().await?).await;
    Ok(RecoverAction::Reclaimed)
}

/// The outcome for a task whose worker was asked to release it, and replied.
fn given_back(answer: &CommandOutcome) -> RecoverAction {
    match answer {
        CommandOutcome::Became(state) if state.is_terminal() => RecoverAction::Ended(*state),
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
    fn what_ended_meanwhile_was_not_given_back() {
        for ended in [
            TaskState::Completed,
            TaskState::Failed,
            TaskState::Timeout,
            TaskState::Cancelled,
            TaskState::Killed,
        ] {
            assert_eq!(
                given_back(&CommandOutcome::Became(ended)),
                RecoverAction::Ended(ended)
            );
        }
        for again in [TaskState::Created, TaskState::Spawning, TaskState::Running] {
            assert_eq!(
                given_back(&CommandOutcome::Became(again)),
                RecoverAction::Requeued
            );
        }
    }
}
