//! `LaunchError`: why a process, container or pod could not be launched; `ExitKind`: how one ended.

use std::{fmt, io};

/// How a worker process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExitKind {
    /// It exited with this code.
    Code(i32),
    /// It was killed by this signal.
    Signal(i32),
    /// It exceeded its memory limit.
    OutOfMemory,
    /// Its node evicted it.
    Evicted,
    /// The cause is unknown.
    Unknown,
}

/// Why a worker could not be launched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct LaunchError {
    /// The kind of failure.
    pub kind: LaunchFailure,
    /// The message of the failure, and what to do.
    reason: String,
}

/// Kinds of launch failures. They are label values of a metric, so there are few.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum LaunchFailure {
    /// The system has no process, descriptor or memory left.
    ResourcesExhausted,
    /// The Docker engine or API server does not answer.
    Unreachable,
    /// The Docker engine or API server denies access.
    Denied,
    /// The image is missing or unusable.
    Image,
    /// The disk is full.
    DiskFull,
    /// Any other refusal.
    Refused,
}

impl LaunchError {
    /// A failure of this kind.
    pub fn new(kind: LaunchFailure, reason: impl Into<String>) -> Self {
        Self {
            kind,
            reason: reason.into(),
        }
    }

    /// Adds an earlier message.
    pub fn with(self, before: &str) -> Self {
        Self {
            reason: format!("{} (before that: {before})", self.reason),
            ..self
        }
    }
}

/// Classifies the error of starting a process.
impl From<io::Error> for LaunchError {
    fn from(error: io::Error) -> Self {
        let kind = match error.kind() {
            io::ErrorKind::OutOfMemory | io::ErrorKind::WouldBlock => {
                LaunchFailure::ResourcesExhausted
            }
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => LaunchFailure::DiskFull,
            io::ErrorKind::PermissionDenied => LaunchFailure::Denied,
            _ => LaunchFailure::Refused,
        };
        Self::new(kind, error.to_string())
    }
}

impl LaunchFailure {
    /// All kinds, in declaration order.
    pub const ALL: [Self; 6] = [
        Self::ResourcesExhausted,
        Self::Unreachable,
        Self::Denied,
        Self::Image,
        Self::DiskFull,
        Self::Refused,
    ];

    /// The label value in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ResourcesExhausted => "resources_exhausted",
            Self::Unreachable => "unreachable",
            Self::Denied => "denied",
            Self::Image => "image",
            Self::DiskFull => "disk_full",
            Self::Refused => "refused",
        }
    }
}

impl ExitKind {
    /// Interprets the exit code of a container: 129 and above mean signals.
    pub fn from_exit_code(code: i32) -> Self {
        if (129..=192).contains(&code) {
            Self::Signal(code - 128)
        } else {
            Self::Code(code)
        }
    }
}

/// Shortens a message of an engine or server to one line without control characters.
pub fn one_line(text: &str) -> String {
    const MAX_CHARS: usize = 400;
    text.trim()
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(MAX_CHARS)
        .collect()
}

impl fmt::Display for ExitKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exited with {code}"),
            Self::Signal(signal) => write!(f, "was killed by signal {signal}"),
            Self::OutOfMemory => f.write_str("ran out of memory"),
            Self::Evicted => f.write_str("was evicted from its node"),
            Self::Unknown => f.write_str("ended for an unknown reason"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_message_becomes_one_short_line() {
        let text = one_line(&format!("a\nb\x1b[2J{}", "x".repeat(9999)));
        assert!(text.len() < 500 && !text.contains(['\n', '\x1b']));
    }
}
