//! Control commands, which tasks, workers and managers all answer.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::text::{names, serialized_as_text};

/// A control command. It is parsed in any case and written in capitals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ControlCommand {
    /// Shut down gracefully.
    Stop,
    /// End immediately.
    Kill,
    /// Suspend.
    Pause,
    /// Continue after a pause.
    Resume,
    /// Reply that the receiver is alive.
    Ping,
    /// Reply with the receiver's state.
    Status,
}

/// A control message: a command, and optionally an id by which its sender recognizes the reply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ControlMessage {
    /// The command.
    pub command: ControlCommand,
    /// Id that the reply repeats.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// With `STOP`: return the task to its queue instead of ending it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub requeue: bool,
}

/// The reply to a control message, written to `ctrl_out`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlReply {
    /// The command that this replies to.
    pub command: ControlCommand,
    /// The sender's id of the message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// `ok`, or the reason of a failure.
    pub status: String,
    /// The state of the replying process, as in its process title.
    pub state: String,
}

/// The text is not a control message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error(
    "not a control message: send STOP, KILL, PAUSE, RESUME, PING or STATUS, as text or as {{\"command\":…}}"
)]
pub struct ParseControlError;

impl ControlMessage {
    /// Creates a message without a request id.
    pub fn new(command: ControlCommand) -> Self {
        Self {
            command,
            request_id: None,
            requeue: false,
        }
    }

    /// Builds the reply to this message.
    pub fn reply(&self, status: impl Into<String>, state: impl Into<String>) -> ControlReply {
        ControlReply {
            command: self.command,
            request_id: self.request_id.clone(),
            status: status.into(),
            state: state.into(),
        }
    }

    /// Formats the message as it is written to `ctrl_in`: the bare command if nothing else is set,
    /// otherwise JSON.
    pub fn to_text(&self) -> String {
        if *self == Self::new(self.command) {
            return self.command.to_string();
        }
        serde_json::to_string(self).expect("a command and a string serialize")
    }
}

names! {
    ControlCommand {
        Stop => "STOP",
        Kill => "KILL",
        Pause => "PAUSE",
        Resume => "RESUME",
        Ping => "PING",
        Status => "STATUS",
    }
}

impl FromStr for ControlCommand {
    type Err = ParseControlError;

    fn from_str(text: &str) -> Result<Self, ParseControlError> {
        Self::ALL
            .into_iter()
            .find(|command| command.as_str().eq_ignore_ascii_case(text))
            .ok_or(ParseControlError)
    }
}

serialized_as_text!(ControlCommand);

impl FromStr for ControlMessage {
    type Err = ParseControlError;

    fn from_str(text: &str) -> Result<Self, ParseControlError> {
        let text = text.trim();
        if let Ok(command) = text.parse() {
            return Ok(Self::new(command));
        }
        // Without this check serde would also accept an array and take its items for the fields in
        // order.
        let object = text
            .starts_with('{')
            .then_some(text)
            .ok_or(ParseControlError)?;
        serde_json::from_str(object).map_err(|_| ParseControlError)
    }
}

#[cfg(test)]
mod tests;
