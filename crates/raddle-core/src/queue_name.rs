//! The names of queues, and which of them are views of the broker's own records.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::{Tid, manager::PRIME};

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

impl Port {
    const ALL: [Self; 5] = [Self::Inbox, Self::Reserved, Self::Outbox, Self::CtrlIn, Self::CtrlOut];

    fn as_str(self) -> &'static str {
        match self {
            Self::Inbox => "inbox",
            Self::Reserved => "reserved",
            Self::Outbox => "outbox",
            Self::CtrlIn => "ctrl_in",
            Self::CtrlOut => "ctrl_out",
        }
    }
}

impl System {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Log,
        Self::TidMappings,
        Self::Registry,
        Self::Control,
        Self::Status,
        Self::SpawnRequests,
        Self::SpawnResults,
        Self::Dead,
    ];

    fn as_str(self) -> &'static str {
        match self {
            Self::Log => "raddle.tasks.log",
            Self::TidMappings => "raddle.tid.mappings",
            Self::Registry => "raddle.workers.registry",
            Self::Control => "raddle.workers.control",
            Self::Status => "raddle.workers.status",
            Self::SpawnRequests => "raddle.spawn.requests",
            Self::SpawnResults => "raddle.spawn.results",
            Self::Dead => "raddle.dead",
        }
    }

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
                let desk = match desk {
                    "requests" => Desk::Requests,
                    "results" => Desk::Results,
                    "control" => Desk::Control,
                    "status" => Desk::Status,
                    _ => return None,
                };
                crate::manager::parse_type(kind).is_ok().then_some((kind, desk))
            }
            _ => None,
        }
    }
}

impl FromStr for QueueName {
    type Err = ParseQueueNameError;

    fn from_str(text: &str) -> Result<Self, ParseQueueNameError> {
        let is_label = (1..=128).contains(&text.len())
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-:@/".contains(&b));
        if !is_label {
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

impl fmt::Display for QueueName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Task(tid, port) => write!(f, "T{tid}.{}", port.as_str()),
            Self::System(system) => f.write_str(system.as_str()),
            Self::Free(name) => f.write_str(name),
        }
    }
}

impl Serialize for QueueName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for QueueName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests;
