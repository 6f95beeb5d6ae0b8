//! Starting workers somewhere, and hearing of them.

use std::{borrow::Borrow, fmt, io, sync::Arc};

use async_trait::async_trait;
use raddle_model::{Tid, WorkerEntry, worker::WorkerInfo};

use crate::worker::is_local;

/// A worker that was launched, as its launcher names it: a process by its number, what runs elsewhere by its name there. No two that live
/// have the same.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaunchId(Arc<str>);

/// Tells a worker that is another program which spawner keeps it. Commands never see variables that begin like this.
pub const SPAWNER_VARIABLE: &str = "RADDLE_INTERNAL_SPAWNER";

/// Tells a worker that somebody listens, on its standard output or, if this is the path of a file, there: for its id, and for the word that it has its task.
pub const WARM_VARIABLE: &str = "RADDLE_INTERNAL_WARM";

/// How this program is told to be a worker in the foreground, of this name and for these queues. More may be said after it.
pub fn worker_words(name: &str, queues: &[impl Borrow<str>]) -> [String; 7] {
    [
        "worker",
        "start",
        "--no-detach",
        "--name",
        name,
        "--queues",
        &queues.join(","),
    ]
    .map(String::from)
}

/// What a launcher tells of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkerEvent {
    /// It is registered and waits for a task.
    Ready(Tid),
    /// It has its task.
    Begun,
    /// It is gone; nothing more is told of it.
    Gone(ExitKind),
    /// It could not be launched after all; nothing more is told of it.
    Failed(LaunchError),
}

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

/// What workers can be told all at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BroadcastCommand {
    /// To stop, or to stop faster if they were told before: SIGTERM.
    Stop,
    /// To give back what they run, and stop.
    GiveBack,
    /// To be gone: SIGKILL.
    Kill,
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

/// How often something was in the way of a launch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaunchFailureCounts([u64; LaunchFailure::ALL.len()]);

/// Starts one-shot workers. They outlive it: what it starts finishes what it has begun, whatever becomes of the spawner.
#[async_trait]
pub trait Launcher: Send {
    /// Starts a worker for the spawner with this id, or begins to: where that takes long, it is not waited for, and news tells how it went.
    async fn launch(&mut self, spawner: Tid) -> Result<LaunchId, LaunchError>;

    /// Who of those that are registered is one that a launcher like this has started, this or another, and its id if so.
    fn recognise(&self, info: &WorkerInfo) -> Option<LaunchId>;

    /// Is shown who is registered, whenever the spawner looks. A launcher to which workers say nothing themselves has its news from here.
    fn look_at(&mut self, registry: &[WorkerEntry]) {
        let _ = registry;
    }

    /// Takes charge of workers that spawners have left which are gone, and says which: from then on there is news of them as of its own.
    /// `alive` are the other spawners that are not gone. A launcher that can be told nothing of workers which it has not started itself takes
    /// none; they are found in the registry.
    async fn inherit(&mut self, alive: &[Tid]) -> Result<Vec<LaunchId>, LaunchError> {
        let _ = alive;
        Ok(Vec::new())
    }

    /// The next news of any worker. Cancel-safe; waits for ever when there is none.
    async fn next(&mut self) -> (LaunchId, WorkerEvent);

    /// Tells all workers that it has started, or taken charge of.
    fn tell(&mut self, what: BroadcastCommand);

    /// Ends a worker that it has taken charge of: it is not registered, so nothing is lost with it.
    fn discard(&mut self, id: &LaunchId) {
        let _ = id;
    }
}

impl LaunchId {
    /// A worker that goes by this name.
    pub fn named(name: &str) -> Self {
        Self(name.into())
    }

    /// A worker that is a process of this machine.
    pub fn process(pid: u32) -> Self {
        Self(pid.to_string().into())
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for LaunchId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// As the process of a worker of this machine, if it is one. One that has its number, and was begun at another time, is somebody else.
pub(super) fn process_here(info: &WorkerInfo) -> Option<LaunchId> {
    let is_another = || {
        info.born.is_some_and(|then| {
            raddle_runner::process_start_time(info.pid).is_some_and(|born| born != then)
        })
    };
    (is_local(info) && !is_another()).then(|| LaunchId::process(info.pid))
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
    #[cfg(feature = "kubernetes")]
    pub(super) fn with(self, before: &str) -> Self {
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

impl LaunchFailureCounts {
    pub(super) fn met(&mut self, obstacle: LaunchFailure) {
        self.0[obstacle as usize] += 1;
    }

    /// Each, and how often it was met.
    pub fn iter(&self) -> impl Iterator<Item = (LaunchFailure, u64)> {
        LaunchFailure::ALL.into_iter().zip(self.0)
    }
}

#[cfg(any(feature = "docker", feature = "kubernetes"))]
impl ExitKind {
    /// What the exit code of a container means: those from 129 on are signals.
    pub(super) fn of_exit_code(code: i32) -> Self {
        if (129..=192).contains(&code) {
            Self::Signal(code - 128)
        } else {
            Self::Code(code)
        }
    }
}

/// What an engine or a server says, for logs: one line of a bounded length.
#[cfg(any(feature = "docker", feature = "kubernetes"))]
pub(super) fn one_line(text: &str) -> String {
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

#[cfg(all(test, any(feature = "docker", feature = "kubernetes")))]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_answer_stays_on_its_line() {
        let text = one_line(&format!("a\nb\x1b[2J{}", "x".repeat(9999)));
        assert!(text.len() < 500 && !text.contains(['\n', '\x1b']));
    }
}
