//! `Failure`: an error as the program receives it.

use raddle_broker::Error;
use raddle_client::{schedule, text::split_hint};
use raddle_model::{spec::ParseSpecError, tid::ParseTidError};
use serde::Serialize;

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Failure {
    /// Its kind: the program maps it to a class of exceptions.
    pub kind: &'static str,
    /// The failure and its reason, for people.
    pub message: String,
    /// The next step, if it names a command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// Of a call: whether the routine may have begun.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub may_have_begun: bool,
    /// Of a call: the error that the routine has returned, in MessagePack. It is the payload.
    #[serde(skip)]
    pub value: Option<Vec<u8>>,
}

impl Failure {
    /// A failure of this kind. The part of the text that names a command or a flag becomes the
    /// hint.
    pub fn new(kind: &'static str, text: &str) -> Self {
        let (message, hint) = split_hint(text);
        Self {
            kind,
            message: message.to_owned(),
            hint: hint.map(str::to_owned),
            may_have_begun: false,
            value: None,
        }
    }

    /// The request is wrong.
    pub fn invalid(text: impl ToString) -> Self {
        Self::new("invalid", &text.to_string())
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let kind = match &error {
            Error::NotFound(_) => "not_found",
            Error::Finished(..) => "finished",
            Error::Unfinished(..) => "unfinished",
            Error::KeyTaken { .. } => "key_taken",
            Error::Unanswered { .. } | Error::Unconfirmed { .. } | Error::Unsynced { .. } => {
                "unconfirmed"
            }
            error if error.is_retryable() => "unavailable",
            error if error.is_callers() => "invalid",
            _ => "broker",
        };
        Self::new(kind, &error.to_string())
    }
}

impl From<ParseSpecError> for Failure {
    fn from(error: ParseSpecError) -> Self {
        Self::invalid(format!("the task cannot be submitted, {error}"))
    }
}

impl From<ParseTidError> for Failure {
    fn from(error: ParseTidError) -> Self {
        Self::invalid(error)
    }
}

impl From<schedule::Error> for Failure {
    fn from(error: schedule::Error) -> Self {
        match error {
            schedule::Error::Broker(error) => error.into(),
            schedule::Error::Absent(_) => Self::new("not_found", &error.to_string()),
            error => Self::invalid(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn separates_the_message_from_the_hint() {
        let tid = raddle_model::Tid::from_u64(1_700_000_000_000_000_000).unwrap();
        let failure = Failure::from(Error::NotFound(tid));
        assert_eq!(
            (failure.kind, failure.message.as_str()),
            ("not_found", "no task 1700000000000000000 here")
        );
        assert_eq!(
            failure.hint.as_deref(),
            Some("'raddle task list' shows those there are")
        );
    }
}
