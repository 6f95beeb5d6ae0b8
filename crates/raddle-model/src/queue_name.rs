//! Queue names, and which queues are views of the broker's records.

use std::{fmt, str::FromStr};

use crate::{
    Tid,
    manager::PRIME,
    spec::is_label,
    text::{names, serialized_as_text},
    tid::{ShortTid, TidArg},
};

/// The name of a queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum QueueName {
    /// One of the five queues of a task: `T<tid>.inbox` and its siblings.
    Task(Tid, TaskQueue),
    /// One of Raddle's own queues: `raddle.tasks.log` and its siblings.
    System(SystemQueue),
    /// Any other name: a queue that users read and write.
    Free(String),
}

/// A queue as a user names it: the full name, or a task's queue with the last ten digits of the
/// task id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueueArg {
    /// The full name.
    Full(QueueName),
    /// A queue of the task whose id ends in these digits. Only the broker can resolve it.
    Short(ShortTid, TaskQueue),
}

/// The five queues of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TaskQueue {
    /// Holds the task's message until it is claimed.
    Inbox,
    /// Holds the message while an attempt processes it, and after an error if the spec says `keep`.
    Reserved,
    /// Holds the result.
    Outbox,
    /// Control commands to the task.
    CtrlIn,
    /// The task's replies to control commands.
    CtrlOut,
}

/// Raddle's own queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum SystemQueue {
    /// Every event of every task.
    Log,
    /// Maps short ids to full ids.
    TidMappings,
    /// The live workers.
    Registry,
    /// Control commands to all workers.
    Control,
    /// The status of the workers.
    Status,
    /// Requests to the root manager.
    SpawnRequests,
    /// Results of those requests.
    SpawnResults,
    /// Exhausted tasks.
    Dead,
}

/// The four queues of the managers of a type: `worker.<type>.requests` and its siblings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ManagerQueue {
    /// Requests to the managers.
    Requests,
    /// Results of the requests.
    Results,
    /// Control commands to all managers of the type.
    Control,
    /// The status of the managers.
    Status,
}

/// Queue in which requests wait for a manager that lists the requested task. It is shown as a part
/// of `raddle.spawn.requests`.
pub const WAITING: &str = "raddle.spawn.waiting";

/// Returns the request queue of the managers of a type.
pub fn requests(kind: &str) -> String {
    if kind == PRIME {
        SystemQueue::SpawnRequests.as_str().into()
    } else {
        format!("worker.{kind}.requests")
    }
}

/// The text is not a valid queue name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is not a queue name: use 1 to 128 letters, digits, and . _ - : @ /")]
pub struct ParseQueueNameError {
    text: String,
}

/// The argument does not name a queue.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseQueueArgError {
    /// The name is invalid.
    #[error(transparent)]
    Name(#[from] ParseQueueNameError),
    /// The name looks like a queue of a task but is not one. As a free queue it would take messages
    /// that no task reads.
    #[error(
        "'{0}' is not a queue of a task: use T, the 19 digits of its id or the last 10, and .inbox, .reserved, .outbox, .ctrl_in or .ctrl_out"
    )]
    Task(String),
}

names! {
    TaskQueue {
        Inbox => "inbox",
        Reserved => "reserved",
        Outbox => "outbox",
        CtrlIn => "ctrl_in",
        CtrlOut => "ctrl_out",
    }
}

names! {
    SystemQueue {
        Log => "raddle.tasks.log",
        TidMappings => "raddle.tid.mappings",
        Registry => "raddle.workers.registry",
        Control => "raddle.workers.control",
        Status => "raddle.workers.status",
        SpawnRequests => "raddle.spawn.requests",
        SpawnResults => "raddle.spawn.results",
        Dead => "raddle.dead",
    }
}

names! {
    ManagerQueue {
        Requests => "requests",
        Results => "results",
        Control => "control",
        Status => "status",
    }
}

impl SystemQueue {
    /// Returns whether the queue is a read-only view of records that the broker keeps anyway.
    pub fn is_view(self) -> bool {
        !matches!(self, Self::Control | Self::SpawnRequests)
    }
}

impl QueueName {
    /// Returns the manager type whose queue this is, and which of its queues.
    pub fn desk(&self) -> Option<(&str, ManagerQueue)> {
        match self {
            Self::System(SystemQueue::SpawnRequests) => Some((PRIME, ManagerQueue::Requests)),
            Self::System(SystemQueue::SpawnResults) => Some((PRIME, ManagerQueue::Results)),
            Self::Free(name) if name == WAITING => Some((PRIME, ManagerQueue::Requests)),
            Self::Free(name) => {
                let (kind, desk) = name.strip_prefix("worker.")?.rsplit_once('.')?;
                let desk = ManagerQueue::ALL
                    .into_iter()
                    .find(|known| known.as_str() == desk)?;
                crate::manager::parse_type(kind)
                    .is_ok()
                    .then_some((kind, desk))
            }
            _ => None,
        }
    }
}

impl FromStr for QueueName {
    type Err = ParseQueueNameError;

    fn from_str(text: &str) -> Result<Self, ParseQueueNameError> {
        if !is_label(text) {
            return Err(ParseQueueNameError { text: text.into() });
        }
        if let Some(system) = SystemQueue::ALL.into_iter().find(|s| s.as_str() == text) {
            return Ok(Self::System(system));
        }
        if let Some((tid, queue)) = text.strip_prefix('T').and_then(|rest| rest.split_once('.'))
            && let Ok(tid) = tid.parse()
            && let Some(queue) = TaskQueue::ALL.into_iter().find(|p| p.as_str() == queue)
        {
            return Ok(Self::Task(tid, queue));
        }
        Ok(Self::Free(text.into()))
    }
}

impl FromStr for QueueArg {
    type Err = ParseQueueArgError;

    fn from_str(text: &str) -> Result<Self, ParseQueueArgError> {
        let name: QueueName = text.parse()?;
        let (QueueName::Free(_), Some((tid, queue))) = (
            &name,
            text.strip_prefix('T').and_then(|t| t.split_once('.')),
        ) else {
            return Ok(Self::Full(name));
        };
        let has_digits = !tid.is_empty() && tid.bytes().all(|b| b.is_ascii_digit());
        match (
            tid.parse(),
            TaskQueue::ALL
                .into_iter()
                .find(|known| known.as_str() == queue),
        ) {
            (Ok(TidArg::Short(short)), Some(queue)) => Ok(Self::Short(short, queue)),
            (Ok(_), _) => Err(ParseQueueArgError::Task(text.into())),
            (Err(_), Some(_)) if has_digits => Err(ParseQueueArgError::Task(text.into())),
            (Err(_), _) => Ok(Self::Full(name)),
        }
    }
}

impl fmt::Display for QueueName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Task(tid, queue) => write!(f, "T{tid}.{}", queue.as_str()),
            Self::System(system) => f.write_str(system.as_str()),
            Self::Free(name) => f.write_str(name),
        }
    }
}

serialized_as_text!(QueueName);

#[cfg(test)]
mod tests;
