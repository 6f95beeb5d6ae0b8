//! The other side of a group: what one of its processes does besides being a worker.
//!
//! It marks each turn of its loop, runs the hooks, keeps the bounds of its group, and ends when its manager is gone: first what it runs may be
//! over, then that is given back, as if its manager had asked. So a manager that is killed leaves nobody behind for longer than a stop takes.

use std::{collections::BTreeMap, io, os::fd::OwnedFd, sync::Arc, time::Duration};

use raddle_model::{HumanDuration, Tid};
use raddle_runner::ProgressPage;
use rustix::process::{Pid, PidfdFlags, getppid, pidfd_open};
use serde::{Deserialize, Serialize};
use tokio::{
    io::{Interest, unix::AsyncFd},
    time::{Interval, MissedTickBehavior, interval, sleep},
};

use super::hook::Hook;
use raddle_worker::{
    Options, Shutdown,
    worker::{TimeLimits, WorkerEnd},
};

/// Tells a worker that it is of a group, and what there is to know. Commands never see variables that begin like this.
pub(super) const VARIABLE: &str = "RADDLE_INTERNAL_GROUP";

/// The exit code of a process that had to kill what it ran, and of a manager with such a process: a shell's for SIGKILL.
pub const KILLED: u8 = 137;

/// How much of the time to shut down is left for what comes after the last task, at most.
const AFTERWARDS: Duration = Duration::from_secs(2);

/// What a process of a group is told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct GroupProcessParams {
    /// The process of its manager.
    pub(super) manager: u32,
    /// The task that its manager is.
    pub(super) parent: Tid,
    /// Whether it is to take nothing before it is told to.
    pub(super) paused: bool,
    /// How often it marks a turn of its loop.
    pub(super) every: HumanDuration,
    /// How long a task of each queue may take.
    pub(super) execution_timeout: BTreeMap<String, HumanDuration>,
    /// How long what was cancelled may take.
    pub(super) shutdown_timeout: HumanDuration,
    /// How many attempts it begins at most.
    pub(super) max_tasks: Option<u64>,
    pub(super) startup: Vec<String>,
    pub(super) shutdown: Vec<String>,
}

/// This process, as one of a group.
pub struct GroupProcess {
    charge: GroupProcessParams,
    page: Arc<ProgressPage>,
    /// Ready when the manager is gone; nothing, if it was before this began.
    manager: Option<AsyncFd<OwnedFd>>,
    turns: Interval,
}

/// Why a process cannot be one of its group.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GroupProcessError {
    /// What it was told makes no sense: its manager is of another version.
    #[error("what {VARIABLE} says is not understood: {0}")]
    Charge(#[from] serde_json::Error),
    /// The system refused something.
    #[error("cannot be one of a group: {0}")]
    System(#[from] io::Error),
    /// Its manager is gone before it has begun.
    #[error("the manager is gone")]
    Forsaken,
    /// A hook failed.
    #[error("the hook '{hook}' {how}")]
    Hook {
        /// Its command.
        hook: String,
        /// How it ended.
        how: String,
    },
}

impl GroupProcess {
    /// This process, if it is one of a group. To be called once, on a runtime.
    pub fn of_environment() -> Result<Option<Self>, GroupProcessError> {
        let Some(text) = std::env::var_os(VARIABLE) else {
            return Ok(None);
        };
        let charge: GroupProcessParams = serde_json::from_str(&text.to_string_lossy())?;
        // Stopped or not, it is to see that its manager is gone. The kernel wakes it by itself only where nobody of its session is left above it, and hangs up
        // on it then: that would count as a first word to stop.
        raddle_runner::wake_when_parent_dies();
        let page = Arc::new(ProgressPage::from_stdin()?);
        let mut turns = interval(charge.every.0.max(Duration::from_millis(1)));
        turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Ok(Some(Self {
            manager: watch(charge.manager)?,
            charge,
            page,
            turns,
        }))
    }

    /// A worker as this group has them. Schedules are fired by its manager.
    pub fn bind(&self, options: Options) -> Options {
        let by_queue = self
            .charge
            .execution_timeout
            .iter()
            .map(|(queue, span)| (queue.clone(), span.0))
            .collect();
        let within = self.charge.shutdown_timeout.0;
        let (max_tasks, page) = (self.charge.max_tasks, Some(Arc::clone(&self.page)));
        let time_limits = TimeLimits {
            by_queue,
            overtime: Some(within),
            max_tasks,
            page,
        };
        // What is left of it is for giving back what was cancelled, and for the hook.
        let grace = within - (within / 4).min(AFTERWARDS);
        let GroupProcessParams { parent, paused, .. } = self.charge;
        Options {
            grace,
            time_limits,
            schedules: false,
            parent: Some(parent),
            paused,
            ..options
        }
    }

    /// Runs what is to be run before the first task. Returns whether that is over, and not what it is `asked` to do instead: to end.
    pub async fn startup(
        &self,
        asked: impl Future<Output = ()>,
    ) -> Result<bool, GroupProcessError> {
        let gone = async {
            if let Some(manager) = &self.manager {
                drop(manager.readable().await);
            }
        };
        // How long it may take is for the manager to say. One that is not waited for is killed.
        let never_mind = async {
            tokio::select! {
                biased;
                () = gone => Err(GroupProcessError::Forsaken),
                () = asked => Ok(false),
            }
        };
        let hook = Hook {
            name: "startup",
            argv: &self.charge.startup,
            of: self.charge.parent,
            within: None,
        };
        hook.run(never_mind).await?.unwrap_or(Ok(true))
    }

    /// Runs what is to be run after the last.
    pub async fn shutdown(&self) -> Result<(), GroupProcessError> {
        let within = Some(self.charge.shutdown_timeout.0);
        let hook = Hook {
            name: "shutdown",
            argv: &self.charge.shutdown,
            of: self.charge.parent,
            within,
        };
        hook.run(std::future::pending::<()>()).await.map(drop)
    }

    /// The exit code that tells the manager how its worker ended.
    pub fn exit_code(&self, ended: &WorkerEnd) -> u8 {
        if ended.killed > 0 { KILLED } else { 0 }
    }

    /// So many attempts have begun.
    pub fn begun(&self, attempts: u64) {
        self.page.set_attempts_started(attempts);
    }

    /// Marks each turn of the loop that polls it. Never returns.
    pub async fn turn(&mut self) {
        loop {
            self.turns.tick().await;
            self.page.count_turn();
        }
    }

    /// Waits until the manager is gone, and then goes through the stages of a stop in its place.
    pub fn mourn(&mut self, shutdown: Shutdown) -> impl Future<Output = ()> + use<> {
        let manager = self.manager.take();
        let drain = self
            .charge
            .execution_timeout
            .values()
            .map(|span| span.0)
            .max()
            .unwrap_or_default();
        let grace = self.charge.shutdown_timeout.0;
        async move {
            if let Some(manager) = manager {
                let _ = manager.readable().await;
            }
            tracing::warn!("the manager is gone: no more tasks are taken, and what runs may end");
            shutdown.request();
            sleep(drain).await;
            shutdown.request();
            sleep(grace).await;
            shutdown.kill();
            // The worker's own end comes now.
            std::future::pending().await
        }
    }
}

/// Watches the manager, which is the parent. Nothing, if that is somebody else by now.
fn watch(manager: u32) -> io::Result<Option<AsyncFd<OwnedFd>>> {
    let is_parent =
        || getppid().is_some_and(|parent| parent.as_raw_nonzero().get() as u32 == manager);
    let Some(pid) = i32::try_from(manager)
        .ok()
        .and_then(Pid::from_raw)
        .filter(|_| is_parent())
    else {
        return Ok(None);
    };
    let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
    // Its number was the manager's when that was opened only if it is now.
    if !is_parent() {
        return Ok(None);
    }
    // SAFETY: the descriptor is owned by the value that is registered, and nothing can replace it there.
    Ok(Some(unsafe {
        AsyncFd::register_with_interest(pidfd, Interest::READABLE)?
    }))
}
