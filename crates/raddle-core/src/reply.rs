//! What a routine or a handler answers: JSON objects, one a line.
//!
//! ```json
//! {"progress": {"percent": 40, "message": "halfway"}}
//! {"log": {"level": "warn", "message": "slow disk"}}
//! {"chain": {"target": {"command": ["./report"]}}}
//! {"result": {"any": "value"}}
//! ```
//!
//! Any number of the first three, then one `result` or one `error`, and then the end of the process. This is read from a process that runs
//! foreign code: whatever it says, it makes its own task fail and nothing else.

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::{Exit, Spec, spec::ParseSpecError};

/// The longest line, and so the largest result.
pub const LONGEST_LINE: usize = 16 << 20;
/// How much of an error's text is kept.
const LONGEST_MESSAGE: usize = 16 << 10;
/// How much of a line that cannot be understood is shown.
const SHOWN: usize = 80;

/// One line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Reply {
    /// How far it has come.
    Progress(Progress),
    /// Something for the task's log.
    Log(#[serde(deserialize_with = "text_or_whole")] Remark),
    /// A task that is to follow it if it succeeds: its spec.
    Chain(Value),
    /// It is done, and this is what came of it.
    Result(Value),
    /// It has failed.
    Error(#[serde(deserialize_with = "text_or_whole")] Fault),
}

/// How far a task has come.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Progress {
    /// From 0 to 100, if that can be said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub percent: Option<f64>,
    /// For people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// A line for the task's log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remark {
    /// How important it is.
    #[serde(default)]
    pub level: Level,
    /// For people.
    pub message: String,
}

/// How important a remark is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Of interest to who looks for a fault.
    Debug,
    /// Of interest.
    #[default]
    Info,
    /// Something is not as it should be.
    Warn,
    /// Something has failed.
    Error,
}

/// Why a routine or a handler has failed, in its own words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// For people.
    pub message: String,
    /// Where in the code it panicked, if that is what it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub panicked_at: Option<String>,
    /// It would fail again: there is no use in another attempt.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub permanent: bool,
    /// An error that its own type can be made from again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<Value>,
}

/// Reads what a text alone says, too.
fn text_or_whole<'de, D: Deserializer<'de>, T: Deserialize<'de> + From<String>>(
    deserializer: D,
) -> Result<T, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "a text, or an object with 'message'")]
    enum Form<T> {
        Text(String),
        Whole(T),
    }
    Ok(match Form::deserialize(deserializer)? {
        Form::Text(message) => T::from(message),
        Form::Whole(whole) => whole,
    })
}

impl<T: Into<String>> From<T> for Fault {
    fn from(message: T) -> Self {
        Self { message: message.into(), panicked_at: None, permanent: false, value: None }
    }
}

impl From<String> for Remark {
    fn from(message: String) -> Self {
        Self { level: Level::default(), message }
    }
}

/// What was said before the answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Aside {
    /// How far it has come.
    Progress(Progress),
    /// Something for the log.
    Log(Remark),
    /// A task that is to follow it if it succeeds.
    Chain(Box<Spec>),
}

/// Why an answer could not be understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Garbled {
    /// A line is not one of the known objects.
    #[error("it answered what is not one of progress, log, chain, result and error: {line}: {reason}")]
    Line {
        /// Its beginning.
        line: String,
        /// What is wrong with it.
        reason: String,
    },
    /// What it chained is no task.
    #[error("it chained what is no task that could be run, {reason}")]
    Chain {
        /// What is wrong with it, and where.
        reason: String,
    },
    /// A line has no end.
    #[error("it answered a line of more than {LONGEST_LINE} bytes")]
    TooLong,
    /// There were two.
    #[error("it answered twice")]
    Twice,
}

impl From<ParseSpecError> for Garbled {
    fn from(error: ParseSpecError) -> Self {
        Self::Chain { reason: error.to_string() }
    }
}

/// One run's answer, as it comes in.
#[derive(Debug, Default)]
pub struct Dialogue {
    /// The beginning of a line.
    rest: Vec<u8>,
    answer: Option<Result<Value, Fault>>,
    garbled: Option<Garbled>,
}

impl Dialogue {
    /// Takes in what was written; returns what is to be shown now. After a line that cannot be understood nothing more is heard.
    pub fn hear(&mut self, bytes: &[u8]) -> Vec<Aside> {
        let mut asides = Vec::new();
        let mut bytes = bytes;
        while self.garbled.is_none() {
            let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else {
                if self.rest.len() + bytes.len() > LONGEST_LINE {
                    self.garbled = Some(Garbled::TooLong);
                    break;
                }
                self.rest.extend_from_slice(bytes);
                return asides;
            };
            let (line, behind) = bytes.split_at(end);
            bytes = &behind[1..];
            if self.rest.is_empty() {
                asides.extend(self.line(line));
            } else {
                self.rest.extend_from_slice(line);
                let whole = std::mem::take(&mut self.rest);
                asides.extend(self.line(&whole));
            }
        }
        self.rest = Vec::new();
        asides
    }

    /// Whether what it writes can no longer be understood, so that there is no use in letting it go on.
    pub fn garbled(&self) -> Option<&Garbled> {
        self.garbled.as_ref()
    }

    fn line(&mut self, line: &[u8]) -> Option<Aside> {
        if line.trim_ascii().is_empty() {
            return None;
        }
        let answer = match serde_json::from_slice(line) {
            Ok(Reply::Progress(progress)) => return Some(Aside::Progress(progress.sane())),
            Ok(Reply::Log(remark)) => return Some(Aside::Log(remark)),
            Ok(Reply::Chain(value)) => match Spec::from_value(value) {
                Ok(spec) => return Some(Aside::Chain(Box::new(spec))),
                Err(error) => {
                    self.garbled = Some(Garbled::from(error));
                    return None;
                }
            },
            Ok(Reply::Result(value)) => Ok(value),
            Ok(Reply::Error(fault)) => Err(fault),
            Err(error) => {
                let shown = String::from_utf8_lossy(&line[..line.len().min(SHOWN)]).into_owned();
                self.garbled = Some(Garbled::Line { line: shown, reason: error.to_string() });
                return None;
            }
        };
        if self.answer.is_some() {
            self.garbled = Some(Garbled::Twice);
        } else {
            self.answer = Some(answer);
        }
        None
    }

    /// How the attempt ended, given how its process did, and the result if there is one.
    pub fn conclude(mut self, exit: Exit) -> (Exit, Option<Value>) {
        // The last line may have no end.
        let rest = std::mem::take(&mut self.rest);
        if self.garbled.is_none() {
            self.line(&rest);
        }
        if !matches!(exit, Exit::Code { .. }) {
            // Its process did not come to its own end: that tells more than anything it said.
            return (exit, None);
        }
        match (self.garbled, self.answer) {
            (Some(garbled), _) => (Exit::Garbled { message: garbled.to_string() }, None),
            (None, Some(Err(fault))) => fault.conclude(),
            (None, Some(Ok(value))) if exit.is_success() => (exit, Some(value)),
            (None, None) if exit.is_success() => (Exit::Garbled { message: "it ended without an answer".into() }, None),
            _ => (exit, None),
        }
    }
}

impl Progress {
    fn sane(self) -> Self {
        let percent = self.percent.filter(|percent| percent.is_finite()).map(|percent| percent.clamp(0.0, 100.0));
        Self { percent, message: cut(self.message, LONGEST_MESSAGE) }
    }
}

impl Fault {
    fn conclude(self) -> (Exit, Option<Value>) {
        let Self { message, panicked_at, permanent, value } = self;
        let message = cut(message, LONGEST_MESSAGE);
        match panicked_at {
            Some(location) => (Exit::Panicked { message, location: cut(location, LONGEST_MESSAGE) }, None),
            None => (Exit::Error { message, permanent }, value),
        }
    }
}

fn cut(mut text: String, longest: usize) -> String {
    if text.len() > longest {
        let end = (0..=longest).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(end);
    }
    text
}

#[cfg(test)]
mod tests;
