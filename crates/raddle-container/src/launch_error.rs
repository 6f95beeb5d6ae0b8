//! Why a process, container or pod could not be launched, and how one ended.

use std::{fmt, io};

/// How a worker ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExitKind {
    /// With this exit code.
    Code(i32),
    /// By this signal.
    Signal(i32),
    /// For want of memory: it had used up what it was allowed.
    OutOfMemory,
    /// The machine that it was on has put it out.
    Evicted,
    /// Nobody can say how.
    Untold,
}

/// Why no worker could be launched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct LaunchError {
    /// What is in the way.
    pub obstacle: LaunchFailure,
    /// What was said of it, and what to do.
    reason: String,
}

/// What is in the way of a launch. Few, and known beforehand: they are counted by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum LaunchFailure {
    /// The system has no process, descriptor or memory to give.
    Starved,
    /// Whoever starts workers does not answer.
    Unreachable,
    /// Whoever starts workers refuses us.
    Denied,
    /// What workers are made from is not there, or is not what it should be.
    Image,
    /// There is no room on the disk.
    DiskFull,
    /// Something else was refused.
    Refused,
}

impl LaunchError {
    /// No worker, because of this.
    pub fn new(obstacle: LaunchFailure, reason: impl Into<String>) -> Self {
        Self {
            obstacle,
            reason: reason.into(),
        }
    }

    /// The same, and what was said before.
    pub fn with(self, before: &str) -> Self {
        Self {
            reason: format!("{} (before that: {before})", self.reason),
            ..self
        }
    }
}

/// What the system says of a process that it does not start.
impl From<io::Error> for LaunchError {
    fn from(error: io::Error) -> Self {
        let obstacle = match error.kind() {
            io::ErrorKind::OutOfMemory | io::ErrorKind::WouldBlock => LaunchFailure::Starved,
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => LaunchFailure::DiskFull,
            io::ErrorKind::PermissionDenied => LaunchFailure::Denied,
            _ => LaunchFailure::Refused,
        };
        Self::new(obstacle, error.to_string())
    }
}

impl LaunchFailure {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 6] = [
        Self::Starved,
        Self::Unreachable,
        Self::Denied,
        Self::Image,
        Self::DiskFull,
        Self::Refused,
    ];

    /// Its name in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Starved => "starved",
            Self::Unreachable => "unreachable",
            Self::Denied => "denied",
            Self::Image => "image",
            Self::DiskFull => "disk_full",
            Self::Refused => "refused",
        }
    }
}

impl ExitKind {
    /// What the exit code of a container means: those from 129 on are signals.
    pub fn of_exit_code(code: i32) -> Self {
        if (129..=192).contains(&code) {
            Self::Signal(code - 128)
        } else {
            Self::Code(code)
        }
    }
}

/// What an engine or a server says, for logs: one line of a bounded length.
pub fn one_line(text: &str) -> String {
    const LONGEST: usize = 400;
    text.trim()
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(LONGEST)
        .collect()
}

impl fmt::Display for ExitKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exited with {code}"),
            Self::Signal(signal) => write!(f, "was ended by signal {signal}"),
            Self::OutOfMemory => f.write_str("was ended for want of memory"),
            Self::Evicted => f.write_str("was put out by the machine that it was on"),
            Self::Untold => f.write_str("ended, and nobody can say how"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_answer_stays_on_its_line() {
        let text = one_line(&format!("a\nb\x1b[2J{}", "x".repeat(9999)));
        assert!(text.len() < 500 && !text.contains(['\n', '\x1b']));
    }
}
