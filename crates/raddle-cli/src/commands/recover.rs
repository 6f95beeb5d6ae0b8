//! `raddle task recover`: a stuck task gets going again, whatever it is stuck in.

use std::time::Duration;

use raddle_broker::Broker;
use raddle_core::{Control, State, TaskView, Tid, Word};
use raddle_fabric::leftovers;
use serde_json::json;

use super::control::{Answer, ask};
use crate::{
    args::TaskArg,
    context::Context,
    error::{Failure, Outcome},
    tid, worker,
};

/// What was done.
#[derive(Debug, PartialEq, Eq)]
enum Deed {
    /// It was held back, and goes on.
    Resumed,
    /// It is finished, and was submitted again under this id.
    Resubmitted(Tid),
    /// It was taken from a worker that is gone.
    Reclaimed,
    /// Its worker gave it back.
    Requeued,
    /// It came to its end before its worker could give it back.
    Ended(State),
    /// It waits for its turn.
    Nothing,
}

pub(super) async fn recover(context: &Context, arg: TaskArg, patience: Duration, force: bool) -> Outcome {
    let broker = context.onlooker().await?;
    let task = tid::find(&*broker, arg).await?;
    worker::refuse(&*broker, &task, "recovered").await?;
    if task.state == State::Completed && !force {
        let again = format!("'raddle task recover --force {}' runs it again", task.tid);
        return Err(Failure::Usage(format!("task {} is completed, there is nothing to recover: {again}", task.tid)));
    }
    let deed = act(&*broker, &task, patience).await?;
    let new = match deed {
        Deed::Resubmitted(new) => Some(new),
        _ => None,
    };
    let record = json!({ "tid": task.tid, "action": deed.as_str(), "new_tid": new });
    context.show(&record, || {
        let became = match deed {
            Deed::Resubmitted(new) => format!("resubmitted as {new}"),
            Deed::Ended(state) => {
                context.note("it has ended meanwhile: 'raddle task retry' submits it again");
                state.to_string()
            }
            Deed::Nothing => {
                context.note("it is not stuck: 'raddle task explain' says what it waits for");
                "waiting".into()
            }
            _ => deed.as_str().into(),
        };
        format!("{} {became}\n", task.tid)
    })
}

async fn act(broker: &dyn Broker, task: &TaskView, patience: Duration) -> Outcome<Deed> {
    if task.state.is_terminal() {
        return Ok(Deed::Resubmitted(broker.resubmit(task.tid, false).await?));
    }
    if task.paused {
        ask(broker, task.tid, Control::new(Word::Resume), patience).await?;
        return Ok(Deed::Resumed);
    }
    if task.state == State::Created {
        return Ok(Deed::Nothing);
    }
    if is_owned(broker, task).await? {
        let give_back = Control { requeue: true, ..Control::new(Word::Stop) };
        match ask(broker, task.tid, give_back, patience).await? {
            Answer::Nothing(_) if is_owned(broker, task).await? => {
                let hint = "kill it with 'raddle task kill', or its worker with 'raddle worker stop --kill'";
                return Err(Failure::TimedOut(format!("task {}: its worker does not answer: {hint}", task.tid)));
            }
            Answer::Nothing(_) => {}
            answer => return Ok(given_back(&answer)),
        }
    }
    leftovers::of_the_dead(&broker.reclaim().await?).await;
    Ok(Deed::Reclaimed)
}

/// What has become of a task whose worker was told to give it back, and did not keep silent.
fn given_back(answer: &Answer) -> Deed {
    match answer {
        Answer::Became(state) if state.is_terminal() => Deed::Ended(*state),
        _ => Deed::Requeued,
    }
}

/// Whether the worker that has the task is alive.
async fn is_owned(broker: &dyn Broker, task: &TaskView) -> Outcome<bool> {
    Ok(broker.workers().await?.iter().any(|worker| Some(worker.tid) == task.worker))
}

impl Deed {
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
        for ended in [State::Completed, State::Failed, State::Timeout, State::Cancelled, State::Killed] {
            assert_eq!(given_back(&Answer::Became(ended)), Deed::Ended(ended));
        }
        for again in [State::Created, State::Spawning, State::Running] {
            assert_eq!(given_back(&Answer::Became(again)), Deed::Requeued);
        }
    }
}
