//! Managers: tasks that spawn other tasks. This module decides what may be requested of a manager,
//! what it spawns in response, and which manager receives a request.
//!
//! A spawn request *is* a task from the moment it is written. Its message is stored as a task with
//! the target [`Request`](crate::Target::Request), under the id that the writer receives, in the
//! queue of the requested manager. One of the manager's workers takes it by an ordinary claim, and
//! only there the request is parsed and checked against the manager's [`SpawnPolicy`]. So there is
//! no step between message and task in which a crash could lose or duplicate the request.

mod registry;
mod resource_limits;
mod route;
mod spawn_message;
mod spawn_policy;
mod template;
#[cfg(test)]
mod tests;

pub use registry::{TaskRegistry, TaskRegistryError};
pub use resource_limits::{ParseResourceLimitsError, ResourceLimits};
pub use route::{RoutedRequest, admit, admit_to_worker, managers};
pub use spawn_message::{SpawnMessage, SpawnRequest};
pub use spawn_policy::{ManagerLaunchCommand, SpawnPolicy, SpawnRefusal};
pub use template::{ParamError, TaskTemplate};

use crate::worker::kind;

/// Type of the root manager, which accepts every request and spawns the other managers.
pub const PRIME: &str = "prime";
/// Name of the task that starts a manager. Only the root manager has it.
pub const WORKER: &str = "worker";
/// Capability that a manager's workers offer to request tasks.
pub const REQUEST: &str = "@request";
/// Longest type name: the queue name that is derived from it must be valid.
const MAX_TYPE_LENGTH: usize = 48;

/// The text cannot be a manager type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidManagerType {
    /// The text has a character that a type cannot have, or is too long.
    #[error("'{0}' is not a type of manager: use 1 to 48 lower-case letters, digits and - _")]
    Malformed(String),
    /// The name denotes another kind of worker.
    #[error("'{0}' cannot be the type of a manager: it is the name of another kind of worker")]
    Taken(String),
}

/// Parses a manager type.
pub fn parse_type(text: &str) -> Result<String, InvalidManagerType> {
    let is_plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-_".contains(&b);
    if !(1..=MAX_TYPE_LENGTH).contains(&text.len()) || !text.bytes().all(is_plain) {
        return Err(InvalidManagerType::Malformed(text.into()));
    }
    if kind::ALL.contains(&text) {
        return Err(InvalidManagerType::Taken(text.into()));
    }
    Ok(text.into())
}

/// Returns the name of a manager of this type.
pub fn name_of(kind: &str) -> String {
    format!("worker-{kind}")
}
