//! Which leash a container belongs to, so that others can tell whether that is gone.

use std::{
    fmt, fs, io,
    str::{FromStr, SplitWhitespace},
};

/// A process, told apart from all others that this machine has had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    /// Since when the machine is up. No process outlives that.
    boot: String,
    /// The namespace that its number counts in.
    space: String,
    pid: u32,
    /// When it began, in clock ticks since boot.
    began: u64,
}

/// The text is no mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NoMark;

const BOOT: &str = "/proc/sys/kernel/random/boot_id";
const SPACE: &str = "/proc/self/ns/pid";
/// The field of a stat line that says when a process began, counted behind its name.
const BEGAN: usize = 19;

impl Mark {
    /// This process.
    pub(super) fn of_this_process() -> io::Result<Self> {
        let pid = std::process::id();
        Ok(Self {
            boot: fs::read_to_string(BOOT)?.trim().to_owned(),
            space: fs::read_link(SPACE)?.to_string_lossy().into_owned(),
            pid,
            began: began(pid).ok_or(io::ErrorKind::NotFound)?,
        })
    }

    /// Whether the process is gone, as seen by another one that is `here`. Of those in other namespaces nothing is known.
    pub(super) fn is_over(&self, here: &Self) -> bool {
        self.is_over_if(here, began)
    }

    fn is_over_if(&self, here: &Self, began: impl Fn(u32) -> Option<u64>) -> bool {
        if self.boot != here.boot {
            return true;
        }
        self.space == here.space && began(self.pid) != Some(self.began)
    }
}

/// When the process with this number began, if there is one that has not ended.
fn began(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Its name may hold anything.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let is_zombie = fields.next()? == "Z";
    let began = fields.nth(BEGAN - 1)?.parse().ok()?;
    (!is_zombie).then_some(began)
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {} {}", self.boot, self.space, self.pid, self.began)
    }
}

impl FromStr for Mark {
    type Err = NoMark;

    fn from_str(text: &str) -> Result<Self, NoMark> {
        let mut words = text.split_whitespace();
        let word = |words: &mut SplitWhitespace<'_>| words.next().map(str::to_owned).ok_or(NoMark);
        let (boot, space) = (word(&mut words)?, word(&mut words)?);
        let pid = word(&mut words)?.parse().map_err(|_| NoMark)?;
        let began = word(&mut words)?.parse().map_err(|_| NoMark)?;
        if words.next().is_some() { Err(NoMark) } else { Ok(Self { boot, space, pid, began }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(text: &str) -> Mark {
        text.parse().unwrap()
    }

    #[test]
    fn a_process_is_known_again() {
        let here = Mark::of_this_process().unwrap();
        assert_eq!(here, mark(&here.to_string()));
        assert!(!here.is_over(&here));
        assert!(Mark { began: here.began + 1, ..here.clone() }.is_over(&here), "another has its number");
        for wrong in ["", "a b 1", "a b c 1", "a b 1 2 3"] {
            assert_eq!(wrong.parse::<Mark>(), Err(NoMark));
        }
    }

    #[test]
    fn nothing_is_said_of_what_cannot_be_seen() {
        let here = mark("now here 1 1");
        let none = |_| None;
        assert!(mark("now here 7 7").is_over_if(&here, none));
        assert!(!mark("now here 7 7").is_over_if(&here, |_| Some(7)));
        assert!(!mark("now elsewhere 7 7").is_over_if(&here, none));
        assert!(mark("before elsewhere 7 7").is_over_if(&here, |_| Some(7)));
    }
}
