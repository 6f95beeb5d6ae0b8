//! The child's side of a group: what a group process does besides being a worker.
//!
//! It counts the turns of its loop on the progress page, runs the hooks, applies the limits of its
//! group, and drains when its manager dies: running tasks may finish within their timeout, then
//! they are released, as in a stop by the manager. So a killed manager leaves no process behind for
//! longer than a stop takes.

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

/// The variable that makes a worker a group process and holds its parameters. Commands never
/// inherit variables with this prefix.
pub(super) const VARIABLE: &str = "RADDLE_INTERNAL_GROUP";

/// Exit code of a process that had to kill its tasks, and of a manager with such a process: a
/// shell's code for SIGKILL.
pub const KILLED: u8 = 137;

/// How much of the shutdown time is reserved for the steps after the last task, at most.
const RELEASE_TIME: Duration = Duration::from_secs(2);

/// The parameters that a manager passes to a group process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct GroupProcessParams {
    /// The pid of its manager.
    pub(super) manager: u32,
    /// The task id of its manager.
    pub(super) parent: Tid,
    /// Whether it claims no tasks until it is resumed.
    pub(super) paused: bool,
    /// How often it counts a turn of its loop.
    pub(super) every: HumanDuration,
    /// The longest run time of a task, by queue.
    pub(super) execution_timeout: BTreeMap<String, HumanDuration>,
    /// How long a task may take to end once it was cancelled.
    pub(super) shutdown_timeout: HumanDuration,
    /// After how many attempts it ends.
    pub(super) max_tasks: Option<u64>,
    pub(super) startup: Vec<String>,
    pub(super) shutdown: Vec<String>,
}

/// This process, as a member of a group.
pub struct GroupProcess {
    params: GroupProcessParams,
    page: Arc<ProgressPage>,
    /// Readable when the manager is gone; `None` if it was gone at the start.
    manager: Option<AsyncFd<OwnedFd>>,
    turns: Interval,
}

/// Reports why a process cannot run as a member of its group.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GroupProcessError {
    /// The parameters cannot be parsed: the manager is of another version.
    #[error("the value of {VARIABLE} cannot be parsed: {0}")]
    Charge(#[from] serde_json::Error),
    /// A system call failed.
    #[error("cannot start as a group process: {0}")]
    System(#[from] io::Error),
    /// The manager died before this process was ready.
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
    /// This process, if its environment says that it belongs to a group. Call it once, on a
    /// runtime.
    pub fn of_environment() -> Result<Option<Self>, GroupProcessError> {
        let Some(text) = std::env::var_os(VARIABLE) else {
            return Ok(None);
        };
        let params: GroupProcessParams = serde_json::from_str(&text.to_string_lossy())?;
        // Even a stopped process must notice that its manager died. Without PR_SET_PDEATHSIG the
        // kernel wakes a stopped process only when its process group becomes orphaned, and then
        // sends SIGHUP as well, which would count as a first stop request.
        raddle_runner::wake_when_parent_dies();
        let page = Arc::new(ProgressPage::from_stdin()?);
        let mut turns = interval(params.every.0.max(Duration::from_millis(1)));
        turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Ok(Some(Self {
            manager: watch_manager(params.manager)?,
            params,
            page,
            turns,
        }))
    }

    /// Applies the limits of the group to the options of a worker. The manager fires the schedules.
    pub fn bind(&self, options: Options) -> Options {
        let by_queue = self
            .params
            .execution_timeout
            .iter()
            .map(|(queue, span)| (queue.clone(), span.0))
            .collect();
        let timeout = self.params.shutdown_timeout.0;
        let (max_tasks, page) = (self.params.max_tasks, Some(Arc::clone(&self.page)));
        let time_limits = TimeLimits {
            by_queue,
            overtime: Some(timeout),
            max_tasks,
            page,
        };
        // The rest of the time is for releasing cancelled tasks, and for the shutdown hook.
        let grace = timeout - (timeout / 4).min(RELEASE_TIME);
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

    /// Runs the startup hook. Returns `false` if `asked`, a request to stop, came before the hook
    /// was over.
    pub async fn startup(
        &self,
        asked: impl Future<Output = ()>,
    ) -> Result<bool, GroupProcessError> {
        let manager_gone = async {
            if let Some(manager) = &self.manager {
                drop(manager.readable().await);
            }
        };
        // No timeout here: the manager enforces `start_timeout`. A cancelled hook is killed.
        let cancelled = async {
            tokio::select! {
                biased;
                () = manager_gone => Err(GroupProcessError::Forsaken),
                () = asked => Ok(false),
            }
        };
        let hook = Hook {
            name: "startup",
            argv: &self.params.startup,
            manager: self.params.parent,
            timeout: None,
        };
        hook.run(cancelled).await?.unwrap_or(Ok(true))
    }

    /// Runs the shutdown hook.
    pub async fn shutdown(&self) -> Result<(), GroupProcessError> {
        let timeout = Some(self.params.shutdown_timeout.0);
        let hook = Hook {
            name: "shutdown",
            argv: &self.params.shutdown,
            manager: self.params.parent,
            timeout,
        };
        hook.run(std::future::pending::<()>()).await.map(drop)
    }

    /// The exit code that reports to the manager how the worker ended.
    pub fn exit_code(&self, ended: &WorkerEnd) -> u8 {
        if ended.killed > 0 { KILLED } else { 0 }
    }

    /// Publishes on the page how many attempts have begun.
    pub fn begun(&self, attempts: u64) {
        self.page.set_attempts_started(attempts);
    }

    /// Counts each turn of the loop that polls it, on the page. Never returns.
    pub async fn turn(&mut self) {
        loop {
            self.turns.tick().await;
            self.page.count_turn();
        }
    }

    /// Waits until the manager is gone, and then takes this process through the stages of a stop.
    pub fn mourn(&mut self, shutdown: Shutdown) -> impl Future<Output = ()> + use<> {
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
            tracing::warn!("the manager is gone: draining, and claiming no more tasks");
            shutdown.request();
            sleep(drain).await;
            shutdown.request();
            sleep(grace).await;
            shutdown.kill();
            // The worker ends after `kill`, and drops this future.
            std::future::pending().await
        }
    }
}

/// Opens a pidfd of the manager, which is the parent. `None` if the parent is another process by
/// now.
fn watch_manager(manager: u32) -> io::Result<Option<AsyncFd<OwnedFd>>> {
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
    // The pid can have been reused: the pidfd is the manager's only if the manager is still the
    // parent.
    if !is_parent() {
        return Ok(None);
    }
    // SAFETY: the `AsyncFd` owns the descriptor, and the descriptor cannot be replaced there.
    Ok(Some(unsafe {
        AsyncFd::register_with_interest(pidfd, Interest::READABLE)?
    }))
}
