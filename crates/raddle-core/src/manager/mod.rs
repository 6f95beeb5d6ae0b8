//! Managers: tasks whose job is to spawn others. What may be asked of one, what it makes of it, and which of them is asked.
//!
//! A spawn request *is* a task from the moment it is written: its message is stored as a task with the target
//! [`Request`](crate::Target::Request), under the id that the writer is told, in the queue of the manager that is asked. Who takes it is one of the manager's
//! workers, by an ordinary claim, and only there the request is read: against the manager's [`Charter`]. So there is no step in which it is a message no
//! more and a task not yet, and nothing that a crash could lose or double.

mod ceiling;
mod charter;
mod registry;
mod request;
mod route;
mod template;
#[cfg(test)]
mod tests;

pub use ceiling::{Ceiling, ParseCeilingError};
pub use charter::{Charter, Herald, Refusal};
pub use registry::{Registry, RegistryError};
pub use request::{Request, Wish};
pub use route::{Errand, admit, admit_to_worker, managers};
pub use template::{Misfit, Template};

use crate::worker::kind;

/// The type of the manager that is asked for everything: the first, which spawns the others.
pub const PRIME: &str = "prime";
/// The task that is a manager: only the prime has it.
pub const WORKER: &str = "worker";
/// What the workers of a manager offer to those tasks that are requests.
pub const REQUEST: &str = "@request";
/// The longest name of a type: what is made of it has to be the name of a queue.
const LONGEST_TYPE: usize = 48;

/// The text cannot be the type of a manager.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidType {
    /// It has a character that a type cannot have, or is too long.
    #[error("'{0}' is not a type of manager: use 1 to 48 lower-case letters, digits and - _")]
    Malformed(String),
    /// Workers of another kind are called so.
    #[error("'{0}' cannot be the type of a manager: other workers are called so")]
    Taken(String),
}

/// Reads the type of a manager.
pub fn parse_type(text: &str) -> Result<String, InvalidType> {
    let is_plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-_".contains(&b);
    if !(1..=LONGEST_TYPE).contains(&text.len()) || !text.bytes().all(is_plain) {
        return Err(InvalidType::Malformed(text.into()));
    }
    if kind::ALL.contains(&text) {
        return Err(InvalidType::Taken(text.into()));
    }
    Ok(text.into())
}

/// What a manager of this type is called.
pub fn name_of(kind: &str) -> String {
    format!("worker-{kind}")
}
