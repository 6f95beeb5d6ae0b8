//! The names of queues, and which of them are views of the broker's own records.

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
    Task(Tid, Port),
    /// One of Raddle's own queues: `raddle.tasks.log` and its siblings.
    System(System),
    /// Any other name: a queue that users read and write as they like.
    Free(String),
}

/// A queue as a person names it: whole, or a queue of a task with the last ten digits of its id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueueArg {
    /// The whole name.
    Full(QueueName),
    /// A queue of the task whose id ends in these digits, which only the broker can complete.
    Short(ShortTid, Port),
}

/// Which of a task's five queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Port {
    /// The task's message until it is claimed.
    Inbox,
    /// The message while an attempt works on it, and after an error when the spec says `keep`.
    Reserved,
    /// The result.
    Outbox,
    /// Control words to the task.
    CtrlIn,
    /// The task's replies to them.
    CtrlOut,
}

/// Raddle's own queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum System {
    /// Every step of every task.
    Log,
    /// Short ids and the full ones they stand for.
    TidMappings,
    /// The live workers.
    Registry,
    /// Control words to all workers.
    Control,
    /// What they are doing.
    Status,
    /// Requests to the prime.
    SpawnRequests,
    /// Its answers.
    SpawnResults,
    /// Exhausted tasks.
    Dead,
}

/// One of the four queues of the managers of a type: `worker.<type>.requests` and its siblings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Desk {
    /// What is asked of them.
    Requests,
    /// What became of it.
    Results,
    /// Control words to all of them.
    Control,
    /// What they are doing.
    Status,
}

/// Where requests wait for a manager that lists what they ask for. It is shown as a part of `raddle.spawn.requests`.
pub const WAITING: &str = "raddle.spawn.waiting";

/// The queue of what is asked of the managers of a type.
pub fn requests(kind: &str) -> String {
    if kind == PRIME { System::SpawnRequests.as_str().into() } else { format!("worker.{kind}.requests") }
}

/// The text is not the name of a queue.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is not a queue name: use 1 to 128 letters, digits, and . _ - : @ /")]
pub struct ParseQueueNameError {
    text: String,
}

/// The text does not name a queue.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseQueueArgError {
    /// No queue has such a name.
    #[error(transparent)]
    Name(#[from] ParseQueueNameError),
    /// It looks like a queue of a task, and is none. As a queue of its own it would take messages that no task reads.
    #[error(
        "'{0}' is not a queue of a task: use T, the 19 digits of its id or the last 10, and .inbox, .reserved, .outbox, .ctrl_in or .ctrl_out"
    )]
    Task(String),
}

names! {
    Port {
        Inbox => "inbox",
        Reserved => "reserved",
        Outbox => "outbox",
        CtrlIn => "ctrl_in",
        CtrlOut => "ctrl_out",
    }
}

names! {
    System {
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
    Desk {
        Requests => "requests",
        Results => "results",
        Control => "control",
        Status => "status",
    }
}

impl System {
    /// Whether the queue shows records the broker keeps anyway, and so cannot be written to.
    pub fn is_view(self) -> bool {
        !matches!(self, Self::Control | Self::SpawnRequests)
    }
}

impl QueueName {
    /// The type of managers whose queue this is, and which of their queues it is.
    pub fn desk(&self) -> Option<(&str, Desk)> {
        match self {
            Self::System(System::SpawnRequests) => Some((PRIME, Desk::Requests)),
            Self::System(System::SpawnResults) => Some((PRIME, Desk::Results)),
            Self::Free(name) if name == WAITING => Some((PRIME, Desk::Requests)),
            Self::Free(name) => {
                let (kind, desk) = name.strip_prefix("worker.")?.rsplit_once('.')?;
                let desk = Desk::ALL.into_iter().find(|known| known.as_str() == desk)?;
                crate::manager::parse_type(kind).is_ok().then_some((kind, desk))
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
        if let Some(system) = System::ALL.into_iter().find(|s| s.as_str() == text) {
            return Ok(Self::System(system));
        }
        if let Some((tid, port)) = text.strip_prefix('T').and_then(|rest| rest.split_once('.'))
            && let Ok(tid) = tid.parse()
            && let Some(port) = Port::ALL.into_iter().find(|p| p.as_str() == port)
        {
            return Ok(Self::Task(tid, port));
        }
        Ok(Self::Free(text.into()))
    }
}

impl FromStr for QueueArg {
    type Err = ParseQueueArgError;

    fn from_str(text: &str) -> Result<Self, ParseQueueArgError> {
        let name: QueueName = text.parse()?;
        let (QueueName::Free(_), Some((tid, port))) = (&name, text.strip_prefix('T').and_then(|t| t.split_once('.')))
        else {
            return Ok(Self::Full(name));
        };
        let has_digits = !tid.is_empty() && tid.bytes().all(|b| b.is_ascii_digit());
        match (tid.parse(), Port::ALL.into_iter().find(|known| known.as_str() == port)) {
            (Ok(TidArg::Short(short)), Some(port)) => Ok(Self::Short(short, port)),
            (Ok(_), _) => Err(ParseQueueArgError::Task(text.into())),
            (Err(_), Some(_)) if has_digits => Err(ParseQueueArgError::Task(text.into())),
            (Err(_), _) => Ok(Self::Full(name)),
        }
    }
}

impl fmt::Display for QueueName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Task(tid, port) => write!(f, "T{tid}.{}", port.as_str()),
            Self::System(system) => f.write_str(system.as_str()),
            Self::Free(name) => f.write_str(name),
        }
    }
}

serialized_as_text!(QueueName);

#[cfg(test)]
mod tests;
