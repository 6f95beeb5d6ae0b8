//! `GroupProcess`: what a process of a group does besides being a worker.
//!
//! It sends heartbeats through its progress page, runs the hooks, applies the limits of its group,
//! and stops when its manager is gone: it drains, then releases its tasks, as if the manager had
//! stop_requested. So a killed manager leaves no processes for longer than a stop takes.

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

/// Passes [`GroupProcessParams`] to a process. Commands never see variables with this prefix.
pub(super) const VARIABLE: &str = "RADDLE_INTERNAL_GROUP";

/// Exit code of a process that had to kill its attempts, and of a manager with such a process: the
/// shell's code for SIGKILL.
pub const EXIT_KILLED: u8 = 137;

/// Most of the shutdown timeout that is reserved for releasing tasks and the shutdown hook.
const MAX_RESERVED: Duration = Duration::from_secs(2);

/// Parameters of a group process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct GroupProcessParams {
    /// PID of its manager.
    pub(super) manager: u32,
    /// Task id of its manager.
    pub(super) parent: Tid,
    /// Whether it starts paused.
    pub(super) paused: bool,
    /// Interval of heartbeats.
    pub(super) heartbeat_interval: HumanDuration,
    /// Timeout of an attempt for each queue.
    pub(super) execution_timeout: BTreeMap<String, HumanDuration>,
    /// How long cancelled attempts may take to end.
    pub(super) shutdown_timeout: HumanDuration,
    /// Most attempts that it starts.
    pub(super) max_tasks: Option<u64>,
    pub(super) startup: Vec<String>,
    pub(super) shutdown: Vec<String>,
}

/// This process, as part of a group.
pub struct GroupProcess {
    params: GroupProcessParams,
    page: Arc<ProgressPage>,
    /// Readable when the manager is gone. `None`: it was gone at the start.
    manager: Option<AsyncFd<OwnedFd>>,
    heartbeats: Interval,
}

/// Why a process cannot be part of its group.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GroupProcessError {
    /// The parameters are malformed: the manager has another version.
    #[error("cannot parse {VARIABLE}: {0}")]
    Params(#[from] serde_json::Error),
    /// A system call failed.
    #[error("cannot run as a process of a group: {0}")]
    System(#[from] io::Error),
    /// The manager was gone at the start.
    #[error("the manager is gone")]
    ManagerGone,
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
    /// This process, if it is part of a group. Call it once, inside a runtime.
    pub fn from_env() -> Result<Option<Self>, GroupProcessError> {
        let Some(text) = std::env::var_os(VARIABLE) else {
            return Ok(None);
        };
        let params: GroupProcessParams = serde_json::from_str(&text.to_string_lossy())?;
        // It must notice the end of its manager even while it is stopped. The kernel continues it
        // only if its session is orphaned, and then sends SIGHUP, which would count as a first stop
        // request.
        raddle_runner::wake_when_parent_dies();
        let page = Arc::new(ProgressPage::from_stdin()?);
        let mut heartbeats = interval(params.heartbeat_interval.0.max(Duration::from_millis(1)));
        heartbeats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Ok(Some(Self {
            manager: open_manager_pidfd(params.manager)?,
            params,
            page,
            heartbeats,
        }))
    }

    /// The options of a worker in this group. The manager fires schedules.
    pub fn worker_options(&self, options: Options) -> Options {
        let by_queue = self
            .params
            .execution_timeout
            .iter()
            .map(|(queue, span)| (queue.clone(), span.0))
            .collect();
        let within = self.params.shutdown_timeout.0;
        let (max_tasks, page) = (self.params.max_tasks, Some(Arc::clone(&self.page)));
        let time_limits = TimeLimits {
            by_queue,
            overtime: Some(within),
            max_tasks,
            page,
        };
        // The rest of the timeout is for releasing cancelled tasks, and for the hook.
        let grace = within - (within / 4).min(MAX_RESERVED);
        let GroupProcessParams { parent, paused, .. } = self.params;
        Options {
            grace,
            time_limits,
            schedules: false,
            parent: Some(parent),
            paused,
            ..options
        }
    }

    /// Runs the startup hook. Returns `false` if `stop_requested` ends it: a stop was requested.
    pub async fn startup(
        &self,
        stop_requested: impl Future<Output = ()>,
    ) -> Result<bool, GroupProcessError> {
        let gone = async {
            if let Some(manager) = &self.manager {
                drop(manager.readable().await);
            }
        };
        // The manager limits the start, and kills a process that takes too long.
        let cancel = async {
            tokio::select! {
                biased;
                () = gone => Err(GroupProcessError::ManagerGone),
                () = stop_requested => Ok(false),
            }
        };
        let hook = Hook {
            name: "startup",
            argv: &self.params.startup,
            manager: self.params.parent,
            timeout: None,
        };
        hook.run(cancel).await?.unwrap_or(Ok(true))
    }

    /// Runs the shutdown hook.
    pub async fn shutdown(&self) -> Result<(), GroupProcessError> {
        let within = Some(self.params.shutdown_timeout.0);
        let hook = Hook {
            name: "shutdown",
            argv: &self.params.shutdown,
            manager: self.params.parent,
            timeout: within,
        };
        hook.run(std::future::pending::<()>()).await.map(drop)
    }

    /// The exit code that tells the manager how the worker ended.
    pub fn exit_code(&self, ended: &WorkerEnd) -> u8 {
        if ended.killed > 0 { EXIT_KILLED } else { 0 }
    }

    /// Task id of the manager.
    pub fn manager(&self) -> Tid {
        self.params.parent
    }

    /// Publishes the number of attempts started.
    pub fn set_attempts_started(&self, attempts: u64) {
        self.page.set_attempts_started(attempts);
    }

    /// Sends heartbeats while the caller's loop polls it. Never returns.
    pub async fn run_heartbeat(&mut self) {
        loop {
            self.heartbeats.tick().await;
            self.page.count_turn();
        }
    }

    /// Waits until the manager is gone, and then goes through the stages of a stop.
    pub fn drain_on_parent_exit(&mut self, shutdown: Shutdown) -> impl Future<Output = ()> + use<> {
        let manager = self.manager.take();
        let drain = self
            .params
            .execution_timeout
            .values()
            .map(|span| span.0)
            .max()
            .unwrap_or_default();
        let grace = self.params.shutdown_timeout.0;
        async move {
            if let Some(manager) = manager {
                let _ = manager.readable().await;
            }
            tracing::warn!("the manager is gone: claiming no more tasks, and draining");
            shutdown.request();
            sleep(drain).await;
            shutdown.request();
            sleep(grace).await;
            shutdown.kill();
            // The worker ends now.
            std::future::pending().await
        }
    }
}

/// Opens a pidfd of the manager, which is the parent. `None` if this process has another parent
/// now.
fn open_manager_pidfd(manager: u32) -> io::Result<Option<AsyncFd<OwnedFd>>> {
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
    // The PID was the manager's at `pidfd_open` only if it still is.
    if !is_parent() {
        return Ok(None);
    }
    // SAFETY: the registered value owns the descriptor, and nothing can replace it there.
    Ok(Some(unsafe {
        AsyncFd::register_with_interest(pidfd, Interest::READABLE)?
    }))
}
