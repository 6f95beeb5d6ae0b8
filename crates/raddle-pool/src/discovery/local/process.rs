//! A process, told apart from all others that there are and have been.

use std::{fmt, fs, io, os::fd::OwnedFd, str::FromStr, sync::OnceLock};

use rustix::{
    io::Errno,
    process::{Pid, PidfdFlags, pidfd_open},
};

/// A process. Numbers of processes are used again, but not twice in the same moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Process {
    pub(super) pid: u32,
    /// When it began, in clock ticks since the machine did.
    started: u64,
    /// The namespace that the number is of. A folder may be shared with a container, where it means another process.
    space: u64,
}

/// What is found of a process.
#[derive(Debug)]
pub(super) enum Life {
    /// It is there; the descriptor becomes readable when it is not. There is none if this process has too many.
    Alive(Option<OwnedFd>),
    Gone,
    /// Nobody here would notice its end.
    Elsewhere,
}

impl Process {
    /// The process that has this number now.
    pub(super) fn find(pid: u32) -> io::Result<Option<Self>> {
        let space = own_space();
        match fs::read_to_string(format!("/proc/{pid}/stat")) {
            Ok(stat) => Ok(parse(&stat).and_then(|stat| stat.started()).map(|started| Self { pid, started, space })),
            Err(error) if error.kind() == io::ErrorKind::NotFound || is_gone(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Looks after it.
    pub(super) fn watch(self) -> Life {
        if self.space != own_space() {
            return Life::Elsewhere;
        }
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
        let descriptor = match pid.map(|pid| pidfd_open(pid, PidfdFlags::empty())) {
            None | Some(Err(Errno::SRCH | Errno::INVAL)) => return Life::Gone,
            Some(descriptor) => descriptor,
        };
        // The descriptor means one process for good; whether it is the right one is asked after it was opened.
        match Self::find(self.pid) {
            Ok(Some(found)) if found == self => Life::Alive(descriptor.ok()),
            Ok(_) => Life::Gone,
            // A /proc that shows nothing, or no descriptor to look with: it is not known to be gone.
            Err(_) => Life::Alive(descriptor.ok()),
        }
    }

    /// It is certain that it has ended.
    pub(super) fn is_gone(self) -> bool {
        self.space == own_space() && Self::find(self.pid).is_ok_and(|found| found != Some(self))
    }
}

/// As part of the name of a file.
impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}", self.pid, self.started, self.space)
    }
}

impl FromStr for Process {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut numbers = text.split('-').map(|number| number.parse::<u64>().map_err(drop));
        let mut next = || numbers.next().ok_or(())?;
        let process = Self { pid: next()?.try_into().map_err(drop)?, started: next()?, space: next()? };
        // As it would have been written: no zeros in front, nothing after it.
        if process.to_string() == text { Ok(process) } else { Err(()) }
    }
}

/// What `/proc/PID/stat` says.
struct Stat {
    state: char,
    started: u64,
}

impl Stat {
    /// When it began, unless it has ended and merely was not waited for.
    fn started(self) -> Option<u64> {
        (!['Z', 'X'].contains(&self.state)).then_some(self.started)
    }
}

fn parse(stat: &str) -> Option<Stat> {
    // The name of a program may have blanks and brackets in it.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    // It is the 22nd; the state was the third.
    let started = fields.nth(18)?.parse().ok()?;
    Some(Stat { state, started })
}

/// The process ended while its file was read.
fn is_gone(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::SRCH.raw_os_error())
}

/// The number of the namespace that process numbers are of here; 0 if nobody says.
fn own_space() -> u64 {
    static SPACE: OnceLock<u64> = OnceLock::new();
    *SPACE.get_or_init(|| {
        use std::os::unix::fs::MetadataExt;
        fs::metadata("/proc/self/ns/pid").map_or(0, |found| found.ino())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_there_until_it_ends_and_is_no_other() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let process = Process::find(child.id()).unwrap().unwrap();
        assert!(matches!(process.watch(), Life::Alive(Some(_))) && !process.is_gone());
        let other = Process { started: process.started - 1, ..process };
        assert!(matches!(other.watch(), Life::Gone) && other.is_gone());
        let elsewhere = Process { space: process.space + 1, ..process };
        assert!(matches!(elsewhere.watch(), Life::Elsewhere) && !elsewhere.is_gone());
        child.kill().unwrap();
        // Before anybody has waited for it, too.
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while !process.is_gone() {
            assert!(std::time::Instant::now() < deadline, "a process that was killed is there");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        assert!(matches!(process.watch(), Life::Gone));
        child.wait().unwrap();
        assert!(matches!(process.watch(), Life::Gone) && process.is_gone());
        assert_eq!(Process::find(0).unwrap(), None);
        assert_eq!(Process::find(u32::MAX).unwrap(), None);
    }

    #[test]
    fn stat_lines_are_read_whatever_the_program_is_called() {
        let line = "17 (a) b (c) S 1 17 17 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4711 99 1 1";
        let stat = parse(line).unwrap();
        assert_eq!((stat.state, stat.started), ('S', 4711));
        assert_eq!(parse(&line.replace(") S", ") Z")).unwrap().started(), None);
        for torn in ["", "17 (a", "17 (a)", "17 (a) S 1 2 3"] {
            assert!(parse(torn).is_none());
        }
    }

    #[test]
    fn processes_are_written_in_one_way() {
        let process = Process { pid: 1, started: 22, space: 333 };
        assert_eq!("1-22-333".parse(), Ok(process));
        assert_eq!(process.to_string(), "1-22-333");
        for wrong in ["", "1", "1-2", "1-2-3-4", "01-2-3", "+1-2-3", "a-2-3", "4294967296-1-1"] {
            assert_eq!(wrong.parse::<Process>(), Err(()), "{wrong}");
        }
    }
}
