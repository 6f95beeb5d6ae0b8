//! `Error`: an error of any kind, for programs that only report what failed.

use std::{error::Error as StdError, fmt, ops::Deref};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// `Result` with an error of any kind.
pub type Result<T, E = Error> = std::result::Result<T, E>;

type BoxedError = Box<dyn StdError + Send + Sync>;

/// An error of any kind. Every error converts into it with `?`. A `main` that returns it prints the
/// message and the causes.
///
/// A routine can return it as well. The caller receives the messages of the error and its causes,
/// but not their types.
///
/// ```
/// fn port(text: &str) -> raddle::Result<u16> {
///     if text.is_empty() {
///         return Err(raddle::Error::msg("which port?"));
///     }
///     Ok(text.parse()?)
/// }
///
/// assert_eq!(port("").unwrap_err().to_string(), "which port?");
/// assert!(port("many").unwrap_err().is::<std::num::ParseIntError>());
/// ```
pub struct Error(BoxedError);

/// The serialised form of an error.
#[derive(Serialize, Deserialize)]
struct SentError {
    message: String,
    #[serde(default)]
    causes: Vec<String>,
}

/// An error from another process, with its causes.
#[derive(Debug)]
struct ReceivedError {
    message: String,
    cause: Option<Box<ReceivedError>>,
}

impl Error {
    /// Creates an error with this message.
    pub fn msg(message: impl Into<String>) -> Self {
        Self(message.into().into())
    }

    /// Converts it into the boxed error of the standard library.
    pub fn into_boxed(self) -> Box<dyn StdError + Send + Sync> {
        self.0
    }

    /// Messages of the causes, nearest first. A cause that the message before already contains is
    /// omitted.
    fn causes(&self) -> Vec<String> {
        let (mut last, mut words) = (self.0.to_string(), Vec::new());
        let mut cause = self.0.source();
        while let Some(error) = cause {
            let said = error.to_string();
            if !last.ends_with(&said) {
                words.push(said.clone());
            }
            (last, cause) = (said, error.source());
        }
        words
    }
}

impl<E: StdError + Send + Sync + 'static> From<E> for Error {
    fn from(error: E) -> Self {
        Self(unwrap_routine_error(Box::new(error)))
    }
}

/// Unwraps the error that a routine returned, so that it prints as in its own process, with its
/// causes.
#[cfg(feature = "pool")]
fn unwrap_routine_error(error: BoxedError) -> BoxedError {
    use crate::CallError;

    match error.downcast::<CallError<Error>>() {
        Ok(call) => match *call {
            CallError::Failed(error) => error.0,
            other => Box::new(other),
        },
        Err(other) => other,
    }
}

#[cfg(not(feature = "pool"))]
fn unwrap_routine_error(error: BoxedError) -> BoxedError {
    error
}

impl Deref for Error {
    type Target = dyn StdError + Send + Sync;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        if f.alternate() {
            self.causes()
                .iter()
                .try_for_each(|cause| write!(f, ": {cause}"))?;
        }
        Ok(())
    }
}

/// For human readers: a `main` that fails prints this form.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        self.causes()
            .iter()
            .try_for_each(|cause| write!(f, "\n  because: {cause}"))
    }
}

impl Serialize for Error {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        SentError {
            message: self.0.to_string(),
            causes: self.causes(),
        }
        .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Error {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let SentError { message, causes } = SentError::deserialize(deserializer)?;
        let wrap = |cause, message| Some(Box::new(ReceivedError { message, cause }));
        let cause = causes.into_iter().rev().fold(None, wrap);
        Ok(Self(Box::new(ReceivedError { message, cause })))
    }
}

impl fmt::Display for ReceivedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl StdError for ReceivedError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.cause.as_deref().map(|cause| cause as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remote_error(words: &[&str]) -> Error {
        let wrap = |cause, message: &&str| {
            Some(Box::new(ReceivedError {
                message: message.to_string(),
                cause,
            }))
        };
        Error(
            words
                .iter()
                .rev()
                .fold(None, wrap)
                .expect("there are words"),
        )
    }

    #[test]
    fn shows_each_cause_once() {
        let error = remote_error(&["cannot start", "no socket: denied", "denied"]);
        assert_eq!(error.to_string(), "cannot start");
        assert_eq!(format!("{error:#}"), "cannot start: no socket: denied");
        assert_eq!(
            format!("{error:?}"),
            "cannot start\n  because: no socket: denied"
        );
        assert_eq!(format!("{:?}", Error::msg("alone")), "alone");
    }

    #[test]
    fn keeps_messages_across_processes() {
        let error = remote_error(&["a", "b", "c"]);
        let there: Error =
            serde_json::from_str(&serde_json::to_string(&error).expect("it can")).expect("it can");
        assert_eq!(format!("{there:?}"), format!("{error:?}"));
        let brief: Error = serde_json::from_str(r#"{"message": "a"}"#).expect("it can");
        assert_eq!(format!("{brief:?}"), "a");
    }

    #[test]
    fn converts_and_downcasts_any_error() {
        let error = (|| -> Result<u8> { Ok("x".parse()?) })().expect_err("it is no number");
        assert!(error.downcast_ref::<std::num::ParseIntError>().is_some());
        assert!(error.into_boxed().is::<std::num::ParseIntError>());
    }

    #[cfg(feature = "pool")]
    #[test]
    fn shows_the_error_of_a_routine_with_its_causes() {
        use crate::CallError;

        let error = Error::from(CallError::Failed(remote_error(&["a", "b"])));
        assert_eq!(format!("{error:#}"), "a: b");
        let error = Error::from(CallError::<Error>::TimedOut);
        assert!(error.is::<CallError<Error>>());
    }
}
