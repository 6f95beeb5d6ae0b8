//! A worker process: this same program again, which dies with its owner.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    path::PathBuf,
    process::Stdio,
    sync::Mutex,
    time::{Duration, SystemTime},
};

use raddle_discovery::{Address, WorkerMetadata, WorkerUid};
use raddle_model::{Tid, TidClock};
use raddle_process::log::Log;
use raddle_tls::{AllowRules, WorkerCredentials};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use serde::{Deserialize, Serialize};
use tokio::{
    io::{Interest, unix::AsyncFd},
    process::{Child, Command},
    sync::{
        mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
        watch,
    },
};

use super::{CallCounts, StopMode, WorkerError, parent_link::ParentLink};
use crate::{
    membership::PoolKey,
    serve::{self, ARGUMENT, StartReport, WorkerSettings},
};

/// Default time limit for the start.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum time between the exit of the process and the end of its socket, in either order.
const EXIT_SKEW: Duration = Duration::from_secs(1);
/// How long the worker may take to report its counts. User code does not delay it.
const COUNTS_TIMEOUT: Duration = Duration::from_secs(1);
/// systemd's readiness socket. The worker is not the service, so it must not inherit the variable.
const NOTIFY_SOCKET: &str = "NOTIFY_SOCKET";

/// Settings of a worker process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ProcessSettings {
    /// The program, which must start with `#[raddle::main]`. Default: this one.
    #[serde(skip)]
    pub program: Option<PathBuf>,
    /// The host that runs the routines. Without it, the program does.
    pub host: Option<HostCommand>,
    /// The worker's id.
    pub uid: WorkerUid,
    /// The name in the process title.
    pub name: String,
    /// The address to serve at; port 0 means any free one. Default: a socket of its own, which only
    /// this user can connect to.
    pub address: Option<String>,
    /// Published tags.
    pub tags: BTreeSet<String>,
    /// Published properties.
    pub extra: BTreeMap<String, String>,
    /// Limit on calls in flight, if any.
    pub max_in_flight: Option<usize>,
    /// Limit on plain functions (`fn`) that run at a time. Default: the number of cores.
    pub max_blocking: Option<usize>,
    /// Credentials: the worker then serves on a port, over TLS.
    #[serde(skip)]
    pub credentials: Option<WorkerCredentials>,
    /// Allow rules. Default: every peer that authenticates.
    pub allow: Option<AllowRules>,
    /// Accept connections of any peer from other machines. Without this, and without credentials,
    /// the worker serves on this machine only.
    pub insecure: bool,
    /// How long unused connections of nested calls are kept.
    pub proxy_pool_ttl: Duration,
    /// The log. Default: from the environment.
    pub log: Option<Log>,
}

/// How to start a host: a program in any language that speaks the host protocol.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostCommand {
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// The directory to run in. Default: that of the worker.
    pub directory: Option<PathBuf>,
    /// Further variables of its environment.
    pub env: BTreeMap<String, String>,
}

/// A worker process. It is killed when this is dropped.
#[derive(Debug)]
pub struct WorkerProcess {
    metadata: WorkerMetadata,
    /// How it ended, once it has.
    ended: watch::Receiver<Option<String>>,
    /// The last counts that it reported.
    reported: watch::Receiver<CallCounts>,
    /// Dropping this kills the process.
    commands: UnboundedSender<ProcessCommand>,
}

/// A command for the task that owns the process.
enum ProcessCommand {
    /// Request its counts.
    QueryCounts,
    /// Stop it.
    Stop(StopMode),
    /// Kill it.
    Kill,
}

impl Default for ProcessSettings {
    fn default() -> Self {
        Self {
            program: None,
            host: None,
            uid: WorkerUid::new(),
            name: "pool-worker".into(),
            address: None,
            tags: BTreeSet::new(),
            extra: BTreeMap::new(),
            max_in_flight: None,
            max_blocking: None,
            credentials: None,
            allow: None,
            insecure: false,
            proxy_pool_ttl: Duration::from_secs(60),
            log: None,
        }
    }
}

impl WorkerProcess {
    /// Starts a worker process. Returns when it serves.
    pub async fn start(
        settings: &ProcessSettings,
        timeout: Option<Duration>,
    ) -> Result<Self, WorkerError> {
        if settings.program.is_none() && !serve::has_entered() {
            return Err(WorkerError::NoEntry);
        }
        let timeout = timeout.unwrap_or(START_TIMEOUT);
        let (mut parent_link, theirs) = ParentLink::new().map_err(WorkerError::Spawn)?;
        // `/proc/self/exe` is this program even if its file was replaced.
        let program = settings
            .program
            .clone()
            .unwrap_or_else(|| "/proc/self/exe".into());
        let mut child = Command::new(program)
            .arg0(process_name())
            .arg(ARGUMENT)
            .env_remove(NOTIFY_SOCKET)
            .stdin(Stdio::from(std::os::fd::OwnedFd::from(theirs)))
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(WorkerError::Spawn)?;
        let starting = tokio::time::timeout(timeout, handshake(settings, &mut parent_link));
        let metadata = match starting.await.unwrap_or(Err(WorkerError::TooSlow(timeout))) {
            Err(WorkerError::Ended(how)) => {
                // The socket may close before the exit is visible.
                let ended = tokio::time::timeout(EXIT_SKEW, child.wait()).await;
                return Err(WorkerError::Ended(ended.map_or(how, describe_exit)));
            }
            outcome => outcome?,
        };
        let (exit, ended) = watch::channel(None);
        let (counts, reported) = watch::channel(CallCounts::default());
        let (commands, receiver) = unbounded_channel();
        // Ends with the process, which is killed when `commands` is dropped.
        tokio::spawn(own_process(
            child,
            ProcessMonitor {
                parent_link,
                commands: receiver,
                counts,
            },
            metadata.address.clone(),
            exit,
        ));
        Ok(Self {
            metadata,
            ended,
            reported,
            commands,
        })
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.metadata.pid
    }

    /// The worker's published metadata.
    pub fn metadata(&self) -> &WorkerMetadata {
        &self.metadata
    }

    /// Whether the process is running.
    pub fn is_alive(&self) -> bool {
        self.ended.borrow().is_none()
    }

    /// Requests the call counts; after a second without an answer, returns the last ones.
    pub async fn call_counts(&self) -> CallCounts {
        let mut reported = self.reported.clone();
        reported.mark_unchanged();
        let _ = self.commands.send(ProcessCommand::QueryCounts);
        if self.is_alive() {
            // A process that has ended has reported its final counts.
            let _ = tokio::time::timeout(COUNTS_TIMEOUT, reported.changed()).await;
        }
        let counts = reported.borrow().clone();
        if self.is_alive() {
            counts
        } else {
            counts.ended()
        }
    }

    /// Waits for the end of the process, and returns how it ended.
    pub async fn ended(&self) -> String {
        let mut ended = self.ended.clone();
        match ended.wait_for(Option::is_some).await {
            Ok(how) => how.clone().unwrap_or_default(),
            Err(_) => "the runtime that owned the process was shut down".into(),
        }
    }

    /// Requests the worker to stop. May be called again with a faster mode.
    pub(super) fn stop(&self, mode: StopMode) {
        // Fails when the process has ended.
        let _ = self.commands.send(ProcessCommand::Stop(mode));
    }

    /// Kills the process.
    pub fn kill(&self) {
        let _ = self.commands.send(ProcessCommand::Kill);
    }
}

/// The pool's end of a running worker.
struct ProcessMonitor {
    parent_link: ParentLink,
    commands: UnboundedReceiver<ProcessCommand>,
    counts: watch::Sender<CallCounts>,
}

impl ProcessMonitor {
    /// Forwards commands and records reports, until the process should be killed.
    async fn forward_commands(&mut self) {
        let mut is_open = true;
        loop {
            tokio::select! {
                report = self.parent_link.next_report(), if is_open => match report {
                    Some(report) => self.record_report(report),
                    None => is_open = false,
                },
                command = self.commands.recv() => match command {
                    Some(ProcessCommand::QueryCounts) => self.parent_link.request_counts(),
                    Some(ProcessCommand::Stop(mode)) => self.parent_link.stop(mode),
                    Some(ProcessCommand::Kill) | None => return,
                },
            }
        }
    }

    /// Receives the remaining reports.
    async fn drain_reports(&mut self) {
        while let Some(report) = self.parent_link.next_report().await {
            self.record_report(report);
        }
    }

    fn record_report(&self, report: StartReport) {
        if let StartReport::Counts(counts) = report {
            self.counts.send_replace(counts);
        }
    }
}

/// Owns the process until it has ended, or its `WorkerProcess` is dropped. Then kills the process
/// group, with everything that the worker has started in it, and removes the socket file.
async fn own_process(
    mut child: Child,
    mut monitor: ProcessMonitor,
    address: String,
    exit: watch::Sender<Option<String>>,
) {
    let pid = child.id().and_then(|pid| Pid::from_raw(pid as i32));
    let opened = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    let pidfd = opened.and_then(|pidfd| {
        // SAFETY: the pidfd is owned by the `AsyncFd`, which keeps it open and never replaces it.
        unsafe { AsyncFd::register_with_interest(pidfd, Interest::READABLE) }.ok()
    });
    if let Some(pidfd) = pidfd {
        tokio::select! {
            _ = pidfd.readable() => {}
            () = monitor.forward_commands() => {}
        }
    }
    // Before `wait` reaps the process: until then its pid cannot be reused.
    if let Some(pid) = pid {
        let _ = kill_process_group(pid, Signal::KILL);
    }
    let status = child.wait().await;
    // The final counts are the last report.
    let _ = tokio::time::timeout(EXIT_SKEW, monitor.drain_reports()).await;
    drop(monitor.parent_link);
    if let Ok(Address::Unix(path)) = address.parse() {
        let _ = std::fs::remove_file(path);
    }
    exit.send_replace(Some(describe_exit(status)));
}

/// Sends the settings, and waits until the worker serves.
async fn handshake(
    settings: &ProcessSettings,
    parent_link: &mut ParentLink,
) -> Result<WorkerMetadata, WorkerError> {
    let disconnected = || WorkerError::Ended("it closed the connection".into());
    let address = settings
        .address
        .clone()
        .unwrap_or_else(|| default_address(settings));
    let message = WorkerSettings {
        tid: next_tid(),
        process: ProcessSettings {
            address: Some(address),
            ..settings.clone()
        },
        credentials: settings
            .credentials
            .as_ref()
            .map(|credentials| credentials.source().clone()),
        pool_key: PoolKey::of_starting_pool(),
    };
    parent_link
        .send(&message)
        .await
        .map_err(|_| disconnected())?;
    match parent_link.next_report().await {
        Some(StartReport::Serving(metadata)) => Ok(*metadata),
        Some(StartReport::Failed(reason)) => Err(WorkerError::Unable(reason)),
        Some(StartReport::Counts(_)) | None => Err(disconnected()),
    }
}

fn describe_exit(status: std::io::Result<std::process::ExitStatus>) -> String {
    status.map_or_else(
        |error| format!("its exit status is unknown: {error}"),
        |status| status.to_string(),
    )
}

/// The default address: unique to the worker.
fn default_address(settings: &ProcessSettings) -> String {
    match settings.credentials {
        // There is no TLS on a Unix socket.
        Some(_) => "127.0.0.1:0".to_owned(),
        None => format!("unix-abstract:raddle-{}", settings.uid),
    }
}

/// The process name until the worker sets its title.
fn process_name() -> OsString {
    std::env::args_os()
        .next()
        .unwrap_or_else(|| "raddle".into())
}

/// A task id for the worker's title: unique in this process, and by the clock among others.
fn next_tid() -> Tid {
    static CLOCK: Mutex<Option<TidClock>> = Mutex::new(None);
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let mut clock = CLOCK
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    clock
        .get_or_insert_with(|| TidClock::resume(0))
        .next(now.as_nanos() as u64)
}
