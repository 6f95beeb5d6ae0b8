//! Errors of commands, with their exit codes.

use std::{fmt, io};

pub(crate) use raddle_view::exit_code::{
    INTERRUPTED, KILLED, RADDLE, TASK_FAILED, TIMED_OUT, USAGE,
};

use raddle_client::text::split_hint;

use crate::output;

/// The result of a command: its exit code, or an error.
pub(crate) type Outcome<T = u8> = Result<T, Failure>;

/// Why a command failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The request was wrong, or names something that does not exist.
    Usage(String),
    /// A timeout passed.
    TimedOut(String),
    /// Raddle itself failed.
    Raddle(String),
    /// The reader of stdout has closed the pipe. This is not an error.
    ClosedPipe,
}

/// Turns errors of libraries into errors of commands.
pub(crate) trait OrFail<T> {
    /// Makes it a usage error with the text of the error.
    fn or_usage(self) -> Outcome<T>;
    /// Makes it a usage error that begins with `what`.
    fn or_usage_at(self, what: impl fmt::Display) -> Outcome<T>;
    /// Makes it a failure of Raddle that begins with `what`.
    fn or_raddle_at(self, what: impl fmt::Display) -> Outcome<T>;
}

impl<T, E: fmt::Display> OrFail<T> for Result<T, E> {
    fn or_usage(self) -> Outcome<T> {
        self.map_err(|error| Failure::Usage(error.to_string()))
    }

    fn or_usage_at(self, what: impl fmt::Display) -> Outcome<T> {
        self.map_err(|error| Failure::Usage(format!("{what}: {error}")))
    }

    fn or_raddle_at(self, what: impl fmt::Display) -> Outcome<T> {
        self.map_err(|error| Failure::Raddle(format!("{what}: {error}")))
    }
}

impl Failure {
    /// Returns the exit code.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => USAGE,
            Self::TimedOut(_) => TIMED_OUT,
            Self::Raddle(_) => RADDLE,
            Self::ClosedPipe => 0,
        }
    }

    /// Prints the error to stderr, as JSON with `--json`.
    pub(crate) fn print(&self, json: bool) {
        match self {
            Self::ClosedPipe => {}
            _ if json => print_json(&self.to_string(), self.exit_code()),
            _ => output::eprint(&self.to_string()),
        }
    }

    /// The error for a `mem://` broker where several processes need one.
    pub(crate) fn memory_broker() -> Self {
        let use_instead = "use it with 'raddle run', or name a file that others can open with --queue-url sqlite:PATH";
        Self::Usage(format!("mem:// exists only in one process: {use_instead}"))
    }

    /// The error for a failed write of data.
    pub(crate) fn from_write_error(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::ClosedPipe,
            _ => Self::Raddle(format!("cannot write the output: {error}")),
        }
    }
}

/// Prints an error as one line of JSON with `error`, `hint` and `exit_code`.
pub(crate) fn print_json(message: &str, code: u8) {
    let (error, hint) = split_hint(message);
    output::eprint_json(&serde_json::json!({ "error": error, "hint": hint, "exit_code": code }));
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(message) | Self::TimedOut(message) | Self::Raddle(message) => {
                f.write_str(message)
            }
            Self::ClosedPipe => f.write_str("stdout is closed"),
        }
    }
}

impl From<raddle_broker::Error> for Failure {
    fn from(error: raddle_broker::Error) -> Self {
        if error.is_callers() {
            Self::Usage(error.to_string())
        } else {
            Self::Raddle(error.to_string())
        }
    }
}

impl From<raddle_view::Error> for Failure {
    fn from(error: raddle_view::Error) -> Self {
        match error {
            raddle_view::Error::Broker(error) => error.into(),
            raddle_view::Error::WorkerSilent(_) => Self::TimedOut(error.to_string()),
            error => Self::Usage(error.to_string()),
        }
    }
}

impl From<raddle_model::query::QueryError> for Failure {
    fn from(error: raddle_model::query::QueryError) -> Self {
        Self::Usage(error.to_string())
    }
}
