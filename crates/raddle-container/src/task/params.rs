//! `ContainerParams`: the input of a container supervisor, one frame on stdin. Arguments and
//! environment would be readable by others and limited in size.

use raddle_runner::ExecRequest;
use serde::{Deserialize, Serialize};

/// An attempt to run in a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerParams {
    /// The attempt, with the stdin of its command.
    pub request: ExecRequest,
    /// The image. The worker chooses it, never the task.
    pub image: String,
    /// Whether it uses the host's network. Otherwise it has none.
    pub is_in_host_network: bool,
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn params() -> ContainerParams {
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
