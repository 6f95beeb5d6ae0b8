//! What is said between the two ends of a leash, as values and on the wire.
//!
//! A command in a container has two processes of ours to look after it. The *leash* is outside, a child of the runner's, and holds the
//! container's standard input. Process 1 inside, *init*, is this program again. It is told over its standard input what to run, and says on
//! its standard output what comes of it; the command itself has pipes of its own. When the leash is gone, however it ended, init reads the
//! end of its input and ends, and with process 1 the kernel ends whatever is in the container.
//!
//! Nothing that init is told is in the settings of the container, where others could read it.

use std::time::Duration;

use raddle_core::{Exit, Usage};
use serde::{Deserialize, Serialize};

use crate::frame::{self, Malformed};

/// The first argument of process 1 in a container.
pub const INIT: &str = "__init";
/// So much input may be on its way to a command that has not taken it. What is more waits outside: else an order would be stuck behind it,
/// and the end of the leash too.
pub const WINDOW: usize = 256 << 10;
/// The longest piece of input that is sent at once.
pub const PIECE: usize = 32 << 10;
/// How often a leash says that it is there.
pub const BEAT: Duration = Duration::from_secs(3);
/// How long init believes in a leash that says nothing. An engine that is restarted may keep its input open without anybody at the other end.
pub const SILENCE: Duration = Duration::from_secs(30);

/// What init runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Begin {
    /// A program and its arguments. One without a slash is searched in `PATH`.
    pub argv: Vec<String>,
    /// Set on top of what the container's own environment is.
    pub env: Vec<(String, String)>,
    /// Whether there is standard input for it.
    pub has_input: bool,
    /// The open files of each of its processes.
    pub max_fds: u64,
}

/// What a leash says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToInit {
    /// Run this. It comes first, and once.
    Begin(Box<Begin>),
    /// Standard input.
    Input(Vec<u8>),
    /// There is no more of it.
    InputEnds,
    /// SIGTERM to the command's group.
    Terminate,
    /// SIGSTOP to all processes.
    Pause,
    /// SIGCONT to all processes.
    Resume,
    /// The leash is there.
    Beat,
}

/// What init says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FromInit {
    /// The command wrote to its standard output.
    Stdout(Vec<u8>),
    /// The command wrote to its standard error.
    Stderr(Vec<u8>),
    /// So much of the input was taken.
    Taken(u32),
    /// It is over, and no process is left. The last that is said.
    Ended(Box<Ended>),
}

/// How a command in a container ended, and what it used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// How it ended.
    pub exit: Exit,
    /// What it used.
    pub usage: Usage,
}

/// The other side does not speak this language.
#[derive(Debug, thiserror::Error)]
#[error("what the other end of a leash said cannot be read")]
pub struct Unreadable(#[source] Malformed);

const BEGIN: u8 = 32;
const INPUT: u8 = 33;
const INPUT_ENDS: u8 = 34;
const TERMINATE: u8 = 35;
const PAUSE: u8 = 36;
const RESUME: u8 = 37;
const ALIVE: u8 = 38;
const TAKEN: u8 = 48;
const ENDED: u8 = 49;

impl ToInit {
    /// Appends its frame.
    pub fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Begin(begin) => frame::put(out, BEGIN, |out| frame::put_structure(out, begin)),
            Self::Input(bytes) => frame::put_raw(out, INPUT, bytes),
            Self::InputEnds => frame::put_raw(out, INPUT_ENDS, &[]),
            Self::Terminate => frame::put_raw(out, TERMINATE, &[]),
            Self::Pause => frame::put_raw(out, PAUSE, &[]),
            Self::Resume => frame::put_raw(out, RESUME, &[]),
            Self::Beat => frame::put_raw(out, ALIVE, &[]),
        }
    }

    /// Takes the next frame off the front of `buf`; `None` if it is not whole yet.
    pub(crate) fn take(buf: &mut Vec<u8>) -> Result<Option<Self>, Malformed> {
        frame::take(buf, frame::MAX_TO_RUNNER, |kind, payload| match kind {
            BEGIN => Ok(Self::Begin(frame::structure(kind, payload)?)),
            INPUT => Ok(Self::Input(payload.to_vec())),
            INPUT_ENDS => Ok(Self::InputEnds),
            TERMINATE => Ok(Self::Terminate),
            PAUSE => Ok(Self::Pause),
            RESUME => Ok(Self::Resume),
            ALIVE => Ok(Self::Beat),
            _ => Err(Malformed::UnknownType(kind)),
        })
    }
}

impl FromInit {
    /// Appends its frame.
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Stdout(bytes) => frame::put_raw(out, frame::STDOUT, bytes),
            Self::Stderr(bytes) => frame::put_raw(out, frame::STDERR, bytes),
            Self::Taken(count) => frame::put_raw(out, TAKEN, &count.to_le_bytes()),
            Self::Ended(ended) => frame::put(out, ENDED, |out| frame::put_structure(out, ended)),
        }
    }

    /// Takes the next frame off the front of `buf`; `None` if it is not whole yet.
    pub fn take(buf: &mut Vec<u8>) -> Result<Option<Self>, Unreadable> {
        let taken = frame::take(buf, frame::MAX_TO_WORKER, |kind, payload| match kind {
            frame::STDOUT => Ok(Self::Stdout(payload.to_vec())),
            frame::STDERR => Ok(Self::Stderr(payload.to_vec())),
            TAKEN => {
                let count = payload.try_into().map_err(|_| Malformed::Short(kind))?;
                Ok(Self::Taken(u32::from_le_bytes(count)))
            }
            ENDED => Ok(Self::Ended(frame::structure(kind, payload)?)),
            _ => Err(Malformed::UnknownType(kind)),
        });
        taken.map_err(Unreadable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_understood_however_it_is_cut() {
        let begin = Begin { argv: vec!["sh".into()], env: vec![("A".into(), "1".into())], has_input: true, max_fds: 9 };
        let said = [
            ToInit::Begin(Box::new(begin)),
            ToInit::Input(b"in\xff".to_vec()),
            ToInit::InputEnds,
            ToInit::Terminate,
            ToInit::Pause,
            ToInit::Resume,
            ToInit::Beat,
        ];
        let (mut wire, mut buf, mut heard) = (Vec::new(), Vec::new(), Vec::new());
        said.iter().for_each(|word| word.put(&mut wire));
        for byte in wire {
            buf.push(byte);
            heard.extend(ToInit::take(&mut buf).unwrap());
        }
        assert_eq!(heard, said);

        let ended = Ended { exit: Exit::Signal { signal: 9 }, usage: Usage { user_us: 7, ..Usage::default() } };
        let said = [
            FromInit::Stdout(b"out".to_vec()),
            FromInit::Stderr(b"err".to_vec()),
            FromInit::Taken(3),
            FromInit::Ended(Box::new(ended)),
        ];
        let (mut wire, mut buf, mut heard) = (Vec::new(), Vec::new(), Vec::new());
        said.iter().for_each(|word| word.put(&mut wire));
        for byte in wire {
            buf.push(byte);
            heard.extend(FromInit::take(&mut buf).unwrap());
        }
        assert_eq!(heard, said);
    }

    #[test]
    fn what_is_no_word_is_refused() {
        for nonsense in [&[99, 0, 0, 0, 0][..], &[49, 0xff, 0xff, 0xff, 0xff], &[48, 1, 0, 0, 0, 7], &[49, 0, 0, 0, 0]]
        {
            assert!(FromInit::take(&mut nonsense.to_vec()).is_err(), "{nonsense:?}");
        }
        for nonsense in [&[99, 0, 0, 0, 0][..], &[32, 0xff, 0xff, 0xff, 0xff], &[32, 1, 0, 0, 0, 9]] {
            assert!(ToInit::take(&mut nonsense.to_vec()).is_err(), "{nonsense:?}");
        }
    }
}
