//! `Launcher`: the trait for starting one-shot workers.

use std::{borrow::Borrow, fmt, sync::Arc};

use async_trait::async_trait;
use raddle_container::{ExitKind, LaunchError, LaunchFailure};
use raddle_model::{Tid, WorkerEntry, worker::WorkerInfo};

use raddle_worker::worker::is_local;

/// A launched worker, as its launcher names it: a process by its PID, a container or pod by its
/// name. Live workers have different ids.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaunchId(Arc<str>);

/// Tells a worker in another program which spawner keeps it. Commands never see variables with this
/// prefix.
pub const SPAWNER_VARIABLE: &str = "RADDLE_INTERNAL_SPAWNER";

/// Tells a worker where to report: its id when it is registered, and a line when it has a task. The
/// value is the path of a file, or means stdout.
pub const WARM_VARIABLE: &str = "RADDLE_INTERNAL_WARM";

/// The arguments that start this program as a worker in the foreground. More may follow.
pub fn worker_args(name: &str, queues: &[impl Borrow<str>]) -> [String; 7] {
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

/// A launcher's report about a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkerEvent {
    /// It is registered and waits for a task.
    Ready(Tid),
    /// It has claimed its task.
    TaskClaimed,
    /// It has ended. This is the last event.
    Exited(ExitKind),
    /// Its launch failed. This is the last event.
    Failed(LaunchError),
}

/// A command to all workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BroadcastCommand {
    /// Stop, or stop faster if repeated: SIGTERM.
    Stop,
    /// Release the running task and stop.
    Release,
    /// End at once: SIGKILL.
    Kill,
}

/// Counts launch failures by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaunchFailureCounts([u64; LaunchFailure::ALL.len()]);

/// Starts one-shot workers. They outlive the launcher: a worker finishes its task even if its
/// spawner is gone.
#[async_trait]
pub trait Launcher: Send {
    /// Starts a worker for this spawner. A slow launch goes on in the background, and `next`
    /// reports its outcome.
    async fn launch(&mut self, spawner: Tid) -> Result<LaunchId, LaunchError>;

    /// Returns the launch id of a registered worker, if a launcher of this kind has started it.
    fn recognise(&self, info: &WorkerInfo) -> Option<LaunchId>;

    /// Receives the registry whenever the spawner reads it. A launcher whose workers do not report
    /// directly takes their events from it.
    fn observe_registry(&mut self, registry: &[WorkerEntry]) {
        let _ = registry;
    }

    /// Adopts the workers of dead spawners, and returns them: from then on `next` reports them too.
    /// `alive` are the other live spawners. A launcher that cannot watch workers that it has not
    /// started adopts none; the spawner finds them in the registry.
    async fn adopt(&mut self, alive: &[Tid]) -> Result<Vec<LaunchId>, LaunchError> {
        let _ = alive;
        Ok(Vec::new())
    }

    /// The next event of any worker. Cancel-safe; pending while there is none.
    async fn next_event(&mut self) -> (LaunchId, WorkerEvent);

    /// Sends a command to all workers that it has started or adopted.
    fn broadcast(&mut self, command: BroadcastCommand);

    /// Ends an adopted worker that is not registered, so that no task is lost.
    fn discard(&mut self, id: &LaunchId) {
        let _ = id;
    }
}

impl LaunchId {
    /// The id of a worker with this name.
    pub fn named(name: &str) -> Self {
        Self(name.into())
    }

    /// The id of a worker process of this machine.
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

/// The launch id of a worker process of this machine. A process with the same PID and another start
/// time is not the worker.
pub(super) fn recognise_process(info: &WorkerInfo) -> Option<LaunchId> {
    let is_another = || {
        info.born.is_some_and(|then| {
            raddle_runner::process_start_time(info.pid).is_some_and(|born| born != then)
        })
    };
    (is_local(info) && !is_another()).then(|| LaunchId::process(info.pid))
}

impl LaunchFailureCounts {
    pub(super) fn record(&mut self, kind: LaunchFailure) {
        self.0[kind as usize] += 1;
    }

    /// Each kind and its count.
    pub fn iter(&self) -> impl Iterator<Item = (LaunchFailure, u64)> {
        LaunchFailure::ALL.into_iter().zip(self.0)
    }
}
