//! `ProcessIdentity`: names the supervisor of a container, so that others can tell whether it is
//! gone.

use std::{fmt, str::FromStr};

/// Identifies a process among all that this machine has ever run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ProcessIdentity {
    /// The boot and the PID namespace that its PID belongs to ([`raddle_runner::pid_scope`]).
    pid_scope: String,
    pid: u32,
    /// When it started, in clock ticks since boot.
    started_at: u64,
}

/// A text that is no identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ParseProcessIdentityError;

impl ProcessIdentity {
    /// The current process, if `/proc` shows its namespace.
    pub(super) fn current() -> Option<Self> {
        let pid = std::process::id();
        Some(Self {
            pid_scope: raddle_runner::pid_scope()?.to_owned(),
            pid,
            started_at: raddle_runner::process_start_time(pid)?,
        })
    }

    /// Whether the process is gone, as seen from the process `here`. Processes of other namespaces
    /// count as alive.
    pub(super) fn is_gone(&self, here: &Self) -> bool {
        self.is_gone_given(here, raddle_runner::process_start_time)
    }

    fn is_gone_given(&self, here: &Self, started_at: impl Fn(u32) -> Option<u64>) -> bool {
        // No process survives a reboot.
        let boot = |identity: &Self| identity.pid_scope.split('/').next().map(str::to_owned);
        boot(self) != boot(here)
            || (self.pid_scope == here.pid_scope && started_at(self.pid) != Some(self.started_at))
    }
}

impl fmt::Display for ProcessIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.pid_scope, self.pid, self.started_at)
    }
}

impl FromStr for ProcessIdentity {
    type Err = ParseProcessIdentityError;

    fn from_str(text: &str) -> Result<Self, ParseProcessIdentityError> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let [pid_scope, pid, started_at] = words[..] else {
            return Err(ParseProcessIdentityError);
        };
        let (pid, started_at) = (
            pid.parse().map_err(|_| ParseProcessIdentityError)?,
            started_at.parse().map_err(|_| ParseProcessIdentityError)?,
        );
        Ok(Self {
            pid_scope: pid_scope.to_owned(),
            pid,
            started_at,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(text: &str) -> ProcessIdentity {
        text.parse().unwrap()
    }

    #[test]
    fn a_process_is_known_again() {
        let here = ProcessIdentity::current().unwrap();
        assert_eq!(here, identity(&here.to_string()));
        assert!(!here.is_gone(&here));
        assert!(
            ProcessIdentity {
                started_at: here.started_at + 1,
                ..here.clone()
            }
            .is_gone(&here),
            "another has its number"
        );
        for wrong in ["", "a/b 1", "a/b c 1", "a/b 1 2 3"] {
            assert_eq!(
                wrong.parse::<ProcessIdentity>(),
                Err(ParseProcessIdentityError)
            );
        }
    }

    #[test]
    fn nothing_is_said_of_what_cannot_be_seen() {
        let here = identity("now/here 1 1");
        let none = |_| None;
        assert!(identity("now/here 7 7").is_gone_given(&here, none));
        assert!(!identity("now/here 7 7").is_gone_given(&here, |_| Some(7)));
        assert!(!identity("now/elsewhere 7 7").is_gone_given(&here, none));
        assert!(identity("before/elsewhere 7 7").is_gone_given(&here, |_| Some(7)));
    }
}
