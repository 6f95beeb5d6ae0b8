//! What a leash is told on its standard input: what to run and how, in one frame. Not as arguments or environment, where others could read it and the
//! system would bound it.

use raddle_runner::ExecRequest;
use serde::{Deserialize, Serialize};

/// One attempt to be run in a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerParams {
    /// The attempt, with the standard input of its command.
    pub request: ExecRequest,
    /// What the container is made from: the worker's choice, never the task's.
    pub image: String,
    /// Whether it is in the network of its host, or in none.
    pub is_in_host_network: bool,
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn charge() -> ContainerParams {
        let request = ExecRequest::command("1794800817069096960".parse().unwrap(), "sh", ["sh"]);
        let request = ExecRequest {
            attempt: 2,
            env: vec![("KEY".into(), "hidden".into())],
            ..request
        };
        ContainerParams {
            request,
            image: "some/image:1".into(),
            is_in_host_network: false,
        }
    }
}
