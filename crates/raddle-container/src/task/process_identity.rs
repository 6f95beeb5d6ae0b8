//! Which leash a container belongs to, so that others can tell whether that is gone.

use std::{fmt, str::FromStr};

/// A process, told apart from all others that this machine has had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ProcessIdentity {
    /// Where its number counts: a boot of a machine, and a namespace there ([`raddle_runner::pid_scope`]).
    place: String,
    pid: u32,
    /// When it began, in clock ticks since boot.
    began: u64,
}

/// The text is no mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ParseProcessIdentityError;

impl ProcessIdentity {
    /// This process, if the system shows where it is.
    pub(super) fn of_this_process() -> Option<Self> {
        let pid = std::process::id();
        Some(Self {
            place: raddle_runner::pid_scope()?.to_owned(),
            pid,
            began: raddle_runner::process_start_time(pid)?,
        })
    }

    /// Whether the process is gone, as seen by another one that is `here`. Of those in other namespaces nothing is known.
    pub(super) fn is_over(&self, here: &Self) -> bool {
        self.is_over_if(here, raddle_runner::process_start_time)
    }

    fn is_over_if(&self, here: &Self, began: impl Fn(u32) -> Option<u64>) -> bool {
        // No process outlives the boot that it was started in.
        let boot = |mark: &Self| mark.place.split('/').next().map(str::to_owned);
        boot(self) != boot(here)
            || (self.place == here.place && began(self.pid) != Some(self.began))
    }
}

impl fmt::Display for ProcessIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.place, self.pid, self.began)
    }
}

impl FromStr for ProcessIdentity {
    type Err = ParseProcessIdentityError;

    fn from_str(text: &str) -> Result<Self, ParseProcessIdentityError> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let [place, pid, began] = words[..] else {
            return Err(ParseProcessIdentityError);
        };
        let (pid, began) = (
            pid.parse().map_err(|_| ParseProcessIdentityError)?,
            began.parse().map_err(|_| ParseProcessIdentityError)?,
        );
        Ok(Self {
            place: place.to_owned(),
            pid,
            began,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(text: &str) -> ProcessIdentity {
        text.parse().unwrap()
    }

    #[test]
    fn a_process_is_known_again() {
        let here = ProcessIdentity::of_this_process().unwrap();
        assert_eq!(here, mark(&here.to_string()));
        assert!(!here.is_over(&here));
        assert!(
            ProcessIdentity {
                began: here.began + 1,
                ..here.clone()
            }
            .is_over(&here),
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
        let here = mark("now/here 1 1");
        let none = |_| None;
        assert!(mark("now/here 7 7").is_over_if(&here, none));
        assert!(!mark("now/here 7 7").is_over_if(&here, |_| Some(7)));
        assert!(!mark("now/elsewhere 7 7").is_over_if(&here, none));
        assert!(mark("before/elsewhere 7 7").is_over_if(&here, |_| Some(7)));
    }
}
