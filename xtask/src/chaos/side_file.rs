//! The side file: one line per observation, which tasks append and Raddle does not know.
//!
//! A line is one `write` to a file opened with `O_APPEND`, so lines of several processes do not mix
//! and a killed process leaves whole lines only.

use std::{
    fmt::{self, Write as _},
    fs::File,
    io::{self, BufRead, BufReader, Write as _},
    path::Path,
};

use raddle_model::Tid;

use crate::plan::Class;

/// The name of the side file in the campaign's directory.
pub(crate) const SIDE_FILE: &str = "attempts.log";

/// One line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) tid: Tid,
    pub(crate) attempt: u32,
    pub(crate) class: Class,
    pub(crate) mark: Mark,
    pub(crate) pid: u32,
    /// The parent of the command, which is its runner.
    pub(crate) ppid: u32,
    /// Nanoseconds of `CLOCK_MONOTONIC`, which all processes of one machine share.
    pub(crate) at: u64,
}

/// The kind of an observation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    /// The attempt began.
    Begin,
    /// The attempt began in a host. It may begin again in another when that host has died.
    BeginInHost,
    /// The attempt is still running.
    TriggerTask,
    /// A process that the attempt left behind is still running.
    Orphan,
    /// The attempt is about to succeed.
    End,
    /// The attempt is about to fail.
    Fail,
}

impl Mark {
    const ALL: [Self; 6] = [
        Self::Begin,
        Self::BeginInHost,
        Self::TriggerTask,
        Self::Orphan,
        Self::End,
        Self::Fail,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Begin => "begin",
            Self::BeginInHost => "begin-in-host",
            Self::TriggerTask => "tick",
            Self::Orphan => "orphan",
            Self::End => "end",
            Self::Fail => "fail",
        }
    }
}

impl Line {
    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let line = Self {
            tid: words.next()?.parse().ok()?,
            attempt: words.next()?.parse().ok()?,
            class: Class::from_name(words.next()?)?,
            mark: words
                .next()
                .and_then(|word| Mark::ALL.into_iter().find(|mark| mark.name() == word))?,
            pid: words.next()?.parse().ok()?,
            ppid: words.next()?.parse().ok()?,
            at: words.next()?.parse().ok()?,
        };
        words.next().is_none().then_some(line)
    }

    /// Appends the line in one `write`.
    pub(crate) fn append(&self, file: &mut File) -> io::Result<()> {
        let mut text = String::with_capacity(80);
        let _ = writeln!(text, "{self}");
        file.write_all(text.as_bytes())
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            tid,
            attempt,
            class,
            mark,
            pid,
            ppid,
            at,
        } = self;
        write!(
            f,
            "{tid} {attempt} {} {} {pid} {ppid} {at}",
            class.name(),
            mark.name()
        )
    }
}

/// Reads all lines. A damaged line is an error, because the evidence would be incomplete.
pub(crate) fn read(path: &Path) -> Result<Vec<Line>, String> {
    let shown = path.display();
    let file = match File::open(path) {
        Ok(file) => file,
        // No task has run yet.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(format!("cannot read {shown}: {error}")),
    };
    let numbered = BufReader::new(file).lines().enumerate();
    numbered
        .map(|(i, text)| {
            let text = text.map_err(|error| format!("cannot read {shown}: {error}"))?;
            Line::parse(&text)
                .ok_or_else(|| format!("line {} of {shown} is damaged: '{text}'", i + 1))
        })
        .collect()
}

/// The ids that a submitter printed. An incomplete last line of a killed submitter is ignored.
pub(crate) fn accepted(printed: &str) -> Vec<Tid> {
    printed
        .split_inclusive('\n')
        .filter_map(|line| line.strip_suffix('\n')?.parse().ok())
        .collect()
}

/// Nanoseconds of `CLOCK_MONOTONIC`.
pub(crate) fn now() -> u64 {
    clock(libc::CLOCK_MONOTONIC)
}

/// Nanoseconds since the epoch.
pub(crate) fn wall() -> u64 {
    clock(libc::CLOCK_REALTIME)
}

fn clock(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the clock exists on every Linux, and `time` is a valid place for the result.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line() -> Line {
        let tid = Tid::from_u64(1_794_785_197_224_973_287).unwrap();
        Line {
            tid,
            attempt: 3,
            class: Class::Short,
            mark: Mark::Begin,
            pid: 7,
            ppid: 6,
            at: 12_345,
        }
    }

    #[test]
    fn reads_lines_that_were_appended() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(SIDE_FILE);
        assert_eq!(read(&path), Ok(Vec::new()));
        let mut file = File::options()
            .append(true)
            .create(true)
            .open(&path)
            .unwrap();
        line().append(&mut file).unwrap();
        Line {
            mark: Mark::End,
            ..line()
        }
        .append(&mut file)
        .unwrap();
        assert_eq!(
            read(&path).unwrap(),
            [
                line(),
                Line {
                    mark: Mark::End,
                    ..line()
                }
            ]
        );
        file.write_all(b"1794785197224973287 3 short beg").unwrap();
        assert!(read(&path).unwrap_err().contains("line 3"));
    }

    #[test]
    fn ignores_an_incomplete_id() {
        let ids = accepted("1794785197224973287\n1794785197224973288\n17947851972249");
        assert_eq!(ids.len(), 2);
        assert!(accepted("").is_empty());
    }
}
