//! The words that tasks, workers and managers answer alike.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::text::{names, serialized_as_text};

/// A control word. It is read in any case and written in capitals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Word {
    /// End in good order.
    Stop,
    /// End now.
    Kill,
    /// Stand still.
    Pause,
    /// Go on.
    Resume,
    /// Say that you are there.
    Ping,
    /// Say how you are.
    Status,
}

/// A control message: a word, and perhaps an id under which its sender looks for the reply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Control {
    /// What to do.
    pub command: Word,
    /// Comes back in the reply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// With `STOP`: put the task back into its queue instead of ending it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub requeue: bool,
}

/// The answer to a control message, written to `ctrl_out`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reply {
    /// The word that is answered.
    pub command: Word,
    /// The sender's id for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// `ok`, or why not.
    pub status: String,
    /// The state of the one that answers, as in its process title.
    pub state: String,
}

/// The text is not a control message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("not a control message: send STOP, KILL, PAUSE, RESUME, PING or STATUS, as text or as {{\"command\":…}}")]
pub struct ParseControlError;

impl Control {
    /// A message without an id.
    pub fn new(command: Word) -> Self {
        Self { command, request_id: None, requeue: false }
    }

    /// The reply to this message.
    pub fn reply(&self, status: impl Into<String>, state: impl Into<String>) -> Reply {
        Reply { command: self.command, request_id: self.request_id.clone(), status: status.into(), state: state.into() }
    }

    /// The message as it is written to `ctrl_in`.
    pub fn to_text(&self) -> String {
        if *self == Self::new(self.command) {
            return self.command.to_string();
        }
        serde_json::to_string(self).expect("a word and a string serialize")
    }
}

names! {
    Word {
        Stop => "STOP",
        Kill => "KILL",
        Pause => "PAUSE",
        Resume => "RESUME",
        Ping => "PING",
        Status => "STATUS",
    }
}

impl FromStr for Word {
    type Err = ParseControlError;

    fn from_str(text: &str) -> Result<Self, ParseControlError> {
        Self::ALL.into_iter().find(|word| word.as_str().eq_ignore_ascii_case(text)).ok_or(ParseControlError)
    }
}

serialized_as_text!(Word);

impl FromStr for Control {
    type Err = ParseControlError;

    fn from_str(text: &str) -> Result<Self, ParseControlError> {
        let text = text.trim();
        if let Ok(word) = text.parse() {
            return Ok(Self::new(word));
        }
        // Without the brace an array would do as well: its items would be taken for the fields in order.
        let object = text.starts_with('{').then_some(text).ok_or(ParseControlError)?;
        serde_json::from_str(object).map_err(|_| ParseControlError)
    }
}

#[cfg(test)]
mod tests;
