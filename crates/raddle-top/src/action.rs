//! Changes of tasks, groups and schedules.

use raddle_broker::{Broker, Error as BrokerError};
use raddle_client::{schedule, text::count};
use raddle_model::{ControlCommand, ControlMessage, Tid};

/// A change that the user asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Something with tasks.
    Tasks(TaskAction, Vec<Tid>),
    /// Turn a group worker on or off.
    SetGroup { slug: String, on: bool },
    /// Set the number of processes of a group worker.
    ScaleGroup { slug: String, replicas: u32 },
    /// Pause or resume a schedule.
    SetSchedule { name: String, paused: bool },
}

/// A change of tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TaskAction {
    Retry,
    Stop,
    Kill,
    Delete,
    Pause,
    Resume,
}

impl TaskAction {
    pub(crate) const ALL: [Self; 6] = [
        Self::Retry,
        Self::Stop,
        Self::Kill,
        Self::Delete,
        Self::Pause,
        Self::Resume,
    ];

    pub(crate) fn verb(self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::Stop => "stop",
            Self::Kill => "kill",
            Self::Delete => "delete",
            Self::Pause => "pause",
            Self::Resume => "resume",
        }
    }

    /// Whether it cannot simply be taken back.
    pub(crate) fn needs_care(self) -> bool {
        !matches!(self, Self::Pause | Self::Resume)
    }

    fn command(self) -> Option<ControlCommand> {
        match self {
            Self::Stop => Some(ControlCommand::Stop),
            Self::Kill => Some(ControlCommand::Kill),
            Self::Pause => Some(ControlCommand::Pause),
            Self::Resume => Some(ControlCommand::Resume),
            Self::Retry | Self::Delete => None,
        }
    }
}

/// Performs an action, and describes its outcome.
pub(crate) async fn perform(broker: &dyn Broker, action: Action) -> Result<String, String> {
    match action {
        Action::Tasks(action, tids) => change_tasks(broker, action, tids).await,
        Action::SetGroup { slug, on } => {
            let set = raddle_groups::set_worker_on(broker, &slug, on).await;
            set.map_err(|error| error.to_string())?;
            Ok(format!("'{slug}' is {}", if on { "on" } else { "off" }))
        }
        Action::ScaleGroup { slug, replicas } => {
            let scaled = raddle_groups::scale(broker, &slug, replicas).await;
            scaled.map_err(|error| error.to_string())?;
            Ok(format!(
                "'{slug}' is set to {}",
                count(replicas.into(), "process")
            ))
        }
        Action::SetSchedule { name, paused } => {
            let changed = if paused {
                schedule::pause(broker, &name).await
            } else {
                schedule::resume(broker, &name).await
            };
            changed.map_err(|error| error.to_string())?;
            let state = if paused { "paused" } else { "resumed" };
            Ok(format!("schedule '{name}' is {state}"))
        }
    }
}

/// Applies an action to each task. Tasks that it does not fit, for example because they have ended
/// meanwhile, are counted.
async fn change_tasks(
    broker: &dyn Broker,
    action: TaskAction,
    tids: Vec<Tid>,
) -> Result<String, String> {
    let total = tids.len() as u64;
    let (mut done, mut refused, mut reason) = (0, 0, None);
    if action == TaskAction::Delete {
        done = broker
            .delete(tids)
            .await
            .map_err(|error| error.to_string())?;
        refused = total - done;
        reason = (refused > 0).then(|| "it is not finished, or gone".to_owned());
    } else {
        for tid in tids {
            let outcome = match action.command() {
                Some(command) => {
                    let message = ControlMessage::new(command);
                    broker.control(tid, message).await.map(|_| ())
                }
                None => broker.resubmit(tid, false).await.map(|_| ()),
            };
            match outcome {
                Ok(()) => done += 1,
                Err(error) if is_about_task(&error) => {
                    refused += 1;
                    reason.get_or_insert_with(|| error.to_string());
                }
                Err(error) => return Err(format!("{error} ({done} of {total} done)")),
            }
        }
    }
    let said = match action.command() {
        // The worker obeys later; the screen shows the state.
        Some(_) => format!("sent '{}' to {}", action.verb(), count(done, "task")),
        None => format!("{} of {}: done", action.verb(), count(done, "task")),
    };
    match reason {
        Some(reason) => Err(format!("{said}; {refused} refused: {reason}")),
        None => Ok(said),
    }
}

/// Whether an error concerns the task, and not the broker.
fn is_about_task(error: &BrokerError) -> bool {
    error.is_callers()
}
