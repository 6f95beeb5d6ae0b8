//! What went wrong, as a message and an exit code.

use std::{fmt, io};

use crate::output;

/// The task failed.
pub(crate) const TASK_FAILED: u8 = 1;
/// The request was wrong, or what it named is not there.
pub(crate) const USAGE: u8 = 2;
/// The time that was given is over.
pub(crate) const TIMED_OUT: u8 = 124;
/// Raddle itself failed.
pub(crate) const RADDLE: u8 = 125;
/// Interrupted.
pub(crate) const INTERRUPTED: u8 = 130;
/// Killed.
pub(crate) const KILLED: u8 = 137;

/// The result of a command: its exit code, or why there is none.
pub(crate) type Outcome<T = u8> = Result<T, Failure>;

/// Why a command could not do what it was asked to.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The request was wrong, or named something that is not there.
    Usage(String),
    /// It took longer than it was given.
    TimedOut(String),
    /// Raddle itself failed.
    Raddle(String),
    /// Nobody reads what is written: the reader has seen enough, which is its right.
    ClosedPipe,
}

/// What an error of something else means for a command.
pub(crate) trait OrFail<T> {
    /// The request was wrong, as the error says.
    fn or_usage(self) -> Outcome<T>;
    /// The request was wrong: `what` could not be done, and why.
    fn or_usage_at(self, what: impl fmt::Display) -> Outcome<T>;
    /// Raddle itself failed: `what` could not be done, and why.
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
    /// The exit code to leave with.
    pub(crate) fn code(&self) -> u8 {
        match self {
            Self::Usage(_) => USAGE,
            Self::TimedOut(_) => TIMED_OUT,
            Self::Raddle(_) => RADDLE,
            Self::ClosedPipe => 0,
        }
    }

    /// Tells the user, as an object with `--json`.
    pub(crate) fn print(&self, json: bool) {
        match self {
            Self::ClosedPipe => {}
            _ if json => print_json(&self.to_string(), self.code()),
            _ => output::complain(&self.to_string()),
        }
    }

    /// Somebody wants to share a broker that cannot be shared.
    pub(crate) fn memory() -> Self {
        let use_instead = "use it with 'raddle run', or name a file that others can open with --queue-url sqlite:PATH";
        Self::Usage(format!("mem:// lives in one process and is gone with it: {use_instead}"))
    }

    /// A failure to write data to where it was to go.
    pub(crate) fn writing(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::ClosedPipe,
            _ => Self::Raddle(format!("cannot write the output: {error}")),
        }
    }
}

/// Tells a program what went wrong: one line with `error`, `hint` and `exit_code`.
pub(crate) fn print_json(message: &str, code: u8) {
    let (error, hint) = split_hint(message);
    output::json_to_stderr(&serde_json::json!({ "error": error, "hint": hint, "exit_code": code }));
}

/// What went wrong, and what to do about it: the part of a message that names a command or a flag.
fn split_hint(message: &str) -> (&str, Option<&str>) {
    let named = ["'raddle ", "--"].iter().flat_map(|mark| message.match_indices(mark)).map(|(at, _)| at);
    let begins = named.filter_map(|at| {
        let ends = [": ", "; ", ". "].iter().filter_map(|end| message[..at].rfind(end).map(|end| (end, end + 2)));
        ends.max()
    });
    match begins.min() {
        Some((end, begin)) => (&message[..end], Some(&message[begin..])),
        None => (message, None),
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(message) | Self::TimedOut(message) | Self::Raddle(message) => f.write_str(message),
            Self::ClosedPipe => f.write_str("nobody reads what is written"),
        }
    }
}

impl From<raddle_broker::Error> for Failure {
    fn from(error: raddle_broker::Error) -> Self {
        if error.is_callers() { Self::Usage(error.to_string()) } else { Self::Raddle(error.to_string()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_is_what_names_a_command_or_a_flag() {
        for (message, expected) in [
            ("task 1 is created: wait for it with --wait", ("task 1 is created", Some("wait for it with --wait"))),
            (
                "no broker at sqlite:/x: it does not exist. Check --queue-url; 'raddle submit' creates it",
                ("no broker at sqlite:/x: it does not exist", Some("Check --queue-url; 'raddle submit' creates it")),
            ),
            ("cannot read x: no such file", ("cannot read x: no such file", None)),
            ("--jobs is for many", ("--jobs is for many", None)),
        ] {
            assert_eq!(split_hint(message), expected);
        }
    }
}
