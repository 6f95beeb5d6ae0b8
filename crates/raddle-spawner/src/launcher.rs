//! Starting workers somewhere, and hearing of them.

use std::{borrow::Borrow, fmt, sync::Arc};

use async_trait::async_trait;
use raddle_container::{ExitKind, LaunchError, LaunchFailure};
use raddle_model::{Tid, WorkerEntry, worker::WorkerInfo};

use raddle_worker::worker::is_local;

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

impl LaunchFailureCounts {
    pub(super) fn met(&mut self, obstacle: LaunchFailure) {
        self.0[obstacle as usize] += 1;
    }

    /// Each, and how often it was met.
    pub fn iter(&self) -> impl Iterator<Item = (LaunchFailure, u64)> {
        LaunchFailure::ALL.into_iter().zip(self.0)
    }
}
