//! The reply protocol of routines and handlers: JSON objects, one per line.
//!
//! ```json
//! {"progress": {"percent": 40, "message": "halfway"}}
//! {"log": {"level": "warn", "message": "slow disk"}}
//! {"chain": {"target": {"command": ["./report"]}}}
//! {"result": {"any": "value"}}
//! ```
//!
//! A reply has any number of the first three, then one `result` or one `error`, and then the
//! process exits. The process runs foreign code: whatever it writes may fail its own task and must
//! not affect anything else.

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::{ExitStatus, TaskSpec, spec::ParseSpecError};

/// The longest accepted line, and so the largest result.
pub const LONGEST_LINE: usize = 16 << 20;
/// Length to which error texts are truncated.
const LONGEST_MESSAGE: usize = 16 << 10;
/// How many bytes of a malformed line are shown.
const MAX_SHOWN_BYTES: usize = 80;

/// One line of a reply.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum ReplyLine {
    /// A progress report.
    Progress(Progress),
    /// A line for the task's log.
    Log(#[serde(deserialize_with = "object_or_message")] LogLine),
    /// Spec of a task to submit if this one succeeds.
    Chain(Value),
    /// The task succeeded with this value.
    Result(Value),
    /// The task failed.
    Error(#[serde(deserialize_with = "object_or_message")] ReportedError),
}

/// The progress of a task.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Progress {
    /// From 0 to 100, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub percent: Option<f64>,
    /// Text for human readers.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// A line for the task's log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLine {
    /// Severity.
    #[serde(default)]
    pub level: LogLevel,
    /// Text for human readers.
    pub message: String,
}

/// Severity of a log line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// Useful for debugging.
    Debug,
    /// Informational.
    #[default]
    Info,
    /// Something is not as expected.
    Warn,
    /// Something has failed.
    Error,
}

/// The failure that a routine or handler reports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportedError {
    /// Text for human readers.
    pub message: String,
    /// Source location, if it panicked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub panicked_at: Option<String>,
    /// Whether another attempt would fail as well, so that the task is not retried.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub permanent: bool,
    /// The serialized error, from which the caller can rebuild its type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<Value>,
}

/// Deserializes `T` from an object, or from its message alone.
fn object_or_message<'de, D: Deserializer<'de>, T: Deserialize<'de> + From<String>>(
    deserializer: D,
) -> Result<T, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "a text, or an object with 'message'")]
    enum MessageForm<T> {
        Text(String),
        Whole(T),
    }
    Ok(match MessageForm::deserialize(deserializer)? {
        MessageForm::Text(message) => T::from(message),
        MessageForm::Whole(whole) => whole,
    })
}

impl<T: Into<String>> From<T> for ReportedError {
    fn from(message: T) -> Self {
        Self {
            message: message.into(),
            panicked_at: None,
            permanent: false,
            value: None,
        }
    }
}

impl From<String> for LogLine {
    fn from(message: String) -> Self {
        Self {
            level: LogLevel::default(),
            message,
        }
    }
}

/// Output that takes effect before the final answer.
#[derive(Clone, Debug, PartialEq)]
pub enum ParsedOutput {
    /// A progress report.
    Progress(Progress),
    /// A line for the task's log.
    Log(LogLine),
    /// A task to submit if this one succeeds.
    Chain(Box<TaskSpec>),
}

/// Why a reply is malformed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MalformedReply {
    /// A line is not one of the known objects.
    #[error("its reply is not one of progress, log, chain, result and error: {line}: {reason}")]
    Line {
        /// The beginning of the line.
        line: String,
        /// The parse error.
        reason: String,
    },
    /// A chained spec is invalid.
    #[error("it chained an invalid task, {reason}")]
    Chain {
        /// The error, with the path of the key.
        reason: String,
    },
    /// A line exceeds the maximum length.
    #[error("it answered a line of more than {LONGEST_LINE} bytes")]
    TooLong,
    /// The reply has two answers.
    #[error("it answered twice")]
    Twice,
}

impl From<ParseSpecError> for MalformedReply {
    fn from(error: ParseSpecError) -> Self {
        Self::Chain {
            reason: error.to_string(),
        }
    }
}

/// Incremental parser of one attempt's reply.
#[derive(Debug, Default)]
pub struct ReplyParser {
    /// An incomplete line.
    rest: Vec<u8>,
    answer: Option<Result<Value, ReportedError>>,
    malformed: Option<MalformedReply>,
}

impl ReplyParser {
    /// Parses bytes that the process wrote, and returns the output that takes effect now. After a
    /// malformed line it ignores all further input.
    pub fn parse(&mut self, bytes: &[u8]) -> Vec<ParsedOutput> {
        let mut output = Vec::new();
        let mut bytes = bytes;
        while self.malformed.is_none() {
            let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else {
                if self.rest.len() + bytes.len() > LONGEST_LINE {
                    self.malformed = Some(MalformedReply::TooLong);
                    break;
                }
                self.rest.extend_from_slice(bytes);
                return output;
            };
            let (line, after) = bytes.split_at(end);
            bytes = &after[1..];
            if self.rest.is_empty() {
                output.extend(self.parse_line(line));
            } else {
                self.rest.extend_from_slice(line);
                let whole = std::mem::take(&mut self.rest);
                output.extend(self.parse_line(&whole));
            }
        }
        self.rest = Vec::new();
        output
    }

    /// Returns the error if the reply is malformed. The caller should then end the process: no
    /// further output counts.
    pub fn malformed(&self) -> Option<&MalformedReply> {
        self.malformed.as_ref()
    }

    fn parse_line(&mut self, line: &[u8]) -> Option<ParsedOutput> {
        if line.trim_ascii().is_empty() {
            return None;
        }
        let answer = match serde_json::from_slice(line) {
            Ok(ReplyLine::Progress(progress)) => {
                return Some(ParsedOutput::Progress(progress.sanitize()));
            }
            Ok(ReplyLine::Log(entry)) => return Some(ParsedOutput::Log(entry)),
            Ok(ReplyLine::Chain(value)) => match TaskSpec::from_value(value) {
                Ok(spec) => return Some(ParsedOutput::Chain(Box::new(spec))),
                Err(error) => {
                    self.malformed = Some(MalformedReply::from(error));
                    return None;
                }
            },
            Ok(ReplyLine::Result(value)) => Ok(value),
            Ok(ReplyLine::Error(error)) => Err(error),
            Err(error) => {
                let shown =
                    String::from_utf8_lossy(&line[..line.len().min(MAX_SHOWN_BYTES)]).into_owned();
                self.malformed = Some(MalformedReply::Line {
                    line: shown,
                    reason: error.to_string(),
                });
                return None;
            }
        };
        if self.answer.is_some() {
            self.malformed = Some(MalformedReply::Twice);
        } else {
            self.answer = Some(answer);
        }
        None
    }

    /// Returns how the attempt ended, given how its process did, and the result if there is one.
    pub fn conclude(mut self, exit: ExitStatus) -> (ExitStatus, Option<Value>) {
        // The last line may lack a newline.
        let rest = std::mem::take(&mut self.rest);
        if self.malformed.is_none() {
            self.parse_line(&rest);
        }
        if !matches!(exit, ExitStatus::Code { .. }) {
            // The process did not exit by itself: its exit status outweighs anything it wrote.
            return (exit, None);
        }
        match (self.malformed, self.answer) {
            (Some(malformed), _) => (
                ExitStatus::ProtocolError {
                    message: malformed.to_string(),
                },
                None,
            ),
            (None, Some(Err(error))) => error.into_exit(),
            (None, Some(Ok(value))) if exit.is_success() => (exit, Some(value)),
            (None, None) if exit.is_success() => (
                ExitStatus::ProtocolError {
                    message: "it ended without an answer".into(),
                },
                None,
            ),
            _ => (exit, None),
        }
    }
}

impl Progress {
    fn sanitize(self) -> Self {
        let percent = self
            .percent
            .filter(|percent| percent.is_finite())
            .map(|percent| percent.clamp(0.0, 100.0));
        Self {
            percent,
            message: truncate(self.message, LONGEST_MESSAGE),
        }
    }
}

impl ReportedError {
    fn into_exit(self) -> (ExitStatus, Option<Value>) {
        let Self {
            message,
            panicked_at,
            permanent,
            value,
        } = self;
        let message = truncate(message, LONGEST_MESSAGE);
        match panicked_at {
            Some(location) => (
                ExitStatus::Panicked {
                    message,
                    location: truncate(location, LONGEST_MESSAGE),
                },
                None,
            ),
            None => (
                ExitStatus::Error {
                    message,
                    permanent,
                    retry_after_ms: None,
                },
                value,
            ),
        }
    }
}

fn truncate(mut text: String, longest: usize) -> String {
    if text.len() > longest {
        let end = (0..=longest)
            .rev()
            .find(|at| text.is_char_boundary(*at))
            .unwrap_or(0);
        text.truncate(end);
    }
    text
}

#[cfg(test)]
mod tests;
