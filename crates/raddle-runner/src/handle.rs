//! `Runner`: the worker's handle to a runner process.

use std::{
    borrow::Cow,
    ffi::OsStr,
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::PathBuf,
    process::Stdio,
    sync::Arc,
    time::Duration,
};

use raddle_model::{
    ExitStatus,
    frame::{self, Decoder},
};
use rustix::process::Signal;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
    process::{Child, Command},
    time::timeout,
};

use crate::{
    ExecRequest, ExecResult, LeaseDeadlinePage, RunnerCommand, RunnerEvent, ToRunner,
    message::{MAX_FROM_RUNNER, MAX_TO_RUNNER},
    runner, runner_cleanup, sys,
};

/// Maximum wait for a runner to exit. A runner that must end, or whose socket is closed, only has
/// to kill and reap.
const CLOSE_DEADLINE: Duration = Duration::from_secs(10);
const RETAINED_CAPACITY: usize = 64 * 1024;

/// Options for starting a runner.
#[derive(Clone, Debug)]
pub struct RunnerOptions {
    /// Program that calls [`crate::runner_main_if_requested`]. Default: the file that this process
    /// was started from, even if it was replaced on disk since.
    pub program: PathBuf,
    /// Process title of an idle runner.
    pub title_idle: String,
    /// Page that holds the deadline of the worker's lease. Without it, attempts outlive the lease.
    pub lease_deadline: Option<Arc<LeaseDeadlinePage>>,
    /// Variables of this process that neither the runner nor its attempts inherit.
    pub removed_variables: &'static [&'static str],
}

/// A runner process, reused for one attempt after another.
///
/// Dropping the handle closes the runner's socket. The runner then kills all processes of its
/// attempt, and exits.
#[derive(Debug)]
pub struct Runner {
    child: Child,
    pid: u32,
    socket: UnixStream,
    incoming: Decoder,
    outgoing: Vec<u8>,
    /// Number of bytes of `outgoing` that were sent.
    sent: usize,
    /// Result of a request that is too large to send.
    too_large: Option<Box<ExecResult>>,
    gone: bool,
    /// The process exited before it was set up as a runner.
    never_started: bool,
}

/// The runner has exited, or sent an unreadable message. Its attempt is dead or dying. A worker
/// that is a subreaper adopts the processes that the command left, and [`crate::reap_orphans`]
/// kills them.
#[derive(Debug, thiserror::Error)]
#[error("the runner with pid {pid} is gone")]
pub struct RunnerLost {
    pid: u32,
    never_started: bool,
    #[source]
    source: Option<io::Error>,
}

impl RunnerLost {
    /// Whether the runner could not be set up because the kernel refused a resource. It ran
    /// nothing, and it was not killed.
    pub fn never_started(&self) -> bool {
        self.never_started
    }
}

impl Default for RunnerOptions {
    fn default() -> Self {
        Self {
            program: "/proc/self/exe".into(),
            title_idle: "raddle-runner".into(),
            lease_deadline: None,
            removed_variables: &[],
        }
    }
}

impl Runner {
    /// Starts a runner process.
    pub async fn spawn(opts: &RunnerOptions) -> io::Result<Self> {
        Self::spawn_with(opts, None)
    }

    /// Starts a runner for one host, which gets `socket` as its descriptor 3.
    pub async fn spawn_for_host(opts: &RunnerOptions, socket: OwnedFd) -> io::Result<Self> {
        Self::spawn_with(opts, Some(socket))
    }

    fn spawn_with(opts: &RunnerOptions, host: Option<OwnedFd>) -> io::Result<Self> {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let socket = UnixStream::from_std(ours)?;
        let stdout = match &opts.lease_deadline {
            Some(page) => Stdio::from(page.as_fd().try_clone_to_owned()?),
            None => Stdio::null(),
        };
        let title = opts.title_idle.replace('\0', "_");
        let mut command = Command::new(&opts.program);
        // No option here may make std leave its posix_spawn path: forking a large worker costs tens
        // of milliseconds.
        command
            .arg0(OsStr::new(&title))
            .args(runner::arguments(opts.lease_deadline.is_some()))
            .stdin(OwnedFd::from(theirs))
            .stdout(stdout)
            .stderr(Stdio::inherit())
            .process_group(0);
        for name in opts.removed_variables {
            command.env_remove(name);
        }
        if let Some(socket) = &host {
            command.env(runner::HOST_SOCKET, socket.as_raw_fd().to_string());
        }
        let (pid, child) = runner_cleanup::register_started(|| {
            // Inheritable only here, where no other runner is being started. This keeps std on its
            // posix_spawn path.
            if let Some(socket) = &host {
                rustix::io::fcntl_setfd(socket, rustix::io::FdFlags::empty())?;
            }
            let child = command.spawn()?;
            drop(host);
            let pid = child
                .id()
                .ok_or_else(|| io::Error::other("the runner ended at once"))?;
            Ok((pid, (pid, child)))
        })?;
        Ok(Self::new(child, pid, socket))
    }

    fn new(child: Child, pid: u32, socket: UnixStream) -> Self {
        let (incoming, outgoing) = (Decoder::new(MAX_FROM_RUNNER), Vec::new());
        Self {
            child,
            pid,
            socket,
            incoming,
            outgoing,
            sent: 0,
            too_large: None,
            gone: false,
            never_started: false,
        }
    }

    /// Process id of the runner.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether the runner process is alive. It may have been killed while it was idle.
    pub fn is_alive(&mut self) -> bool {
        !self.gone && matches!(self.child.try_wait(), Ok(None))
    }

    /// Starts an attempt. The previous attempt must be done.
    pub async fn start(&mut self, request: &ExecRequest) -> Result<(), RunnerLost> {
        let before = self.outgoing.len();
        frame::encode_into(&mut self.outgoing, &ToRunner::Start(Cow::Borrowed(request)));
        if self.outgoing.len() - before > MAX_TO_RUNNER {
            self.outgoing.truncate(before);
            let message =
                "more than 1 GiB of standard input, arguments and environment: use a file".into();
            self.too_large = Some(Box::new(ExecResult::not_started(ExitStatus::SpawnFailed {
                message,
            })));
        }
        self.flush().await
    }

    /// Sends a command for the running attempt.
    pub async fn send(&mut self, command: RunnerCommand) -> Result<(), RunnerLost> {
        if matches!(command, RunnerCommand::Stop | RunnerCommand::Kill) && !self.gone {
            // A runner that is suspended (SIGSTOP) could not carry out the command.
            sys::kill(self.pid, Signal::CONT);
        }
        frame::encode_into(&mut self.outgoing, &ToRunner::Command(command));
        self.flush().await
    }

    /// Receives the next event of the running attempt. Cancel-safe: dropping the future loses no
    /// event.
    pub async fn next(&mut self) -> Result<RunnerEvent, RunnerLost> {
        if let Some(done) = self.too_large.take() {
            return Ok(RunnerEvent::Done(done));
        }
        self.flush().await?;
        loop {
            match self.incoming.next() {
                Ok(Some(event)) => return Ok(event),
                Ok(None) => {}
                Err(error) => {
                    tracing::error!(pid = self.pid, %error, "killing a runner that sent an unreadable message");
                    let _ = self.child.start_kill();
                    return Err(self.wait_for_exit(Some(io::Error::other(error))).await);
                }
            }
            self.incoming.buffer().reserve(4096);
            match self.socket.read_buf(self.incoming.buffer()).await {
                Ok(0) => return Err(self.wait_for_exit(None).await),
                Ok(_) => {}
                Err(error) => return Err(self.wait_for_exit(Some(error)).await),
            }
        }
    }

    /// Stops the runner and waits until it has exited. A running attempt is killed.
    pub async fn close(mut self) {
        // An error means that the socket is closed already.
        let _ = self.socket.shutdown().await;
        self.wait_for_exit(None).await;
    }

    /// Sends pending bytes. If the future is dropped, the next call continues where it stopped, so
    /// frames stay whole.
    async fn flush(&mut self) -> Result<(), RunnerLost> {
        while self.sent < self.outgoing.len() {
            match self.socket.write(&self.outgoing[self.sent..]).await {
                Ok(n) => self.sent += n,
                // The runner has exited and needs nothing more. The next read reports the exit,
                // after the messages that it sent before.
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
                    ) =>
                {
                    break;
                }
                Err(error) => return Err(self.wait_for_exit(Some(error)).await),
            }
        }
        self.outgoing.clear();
        self.outgoing.shrink_to(RETAINED_CAPACITY);
        self.sent = 0;
        Ok(())
    }

    /// Waits for the process to exit. The kernel closes its socket shortly before it reparents its
    /// children: only after the wait are the orphans children of this process.
    async fn wait_for_exit(&mut self, source: Option<io::Error>) -> RunnerLost {
        if !self.gone {
            // A stopped runner would not notice that its socket is closed.
            sys::kill(self.pid, Signal::CONT);
            let code = match timeout(CLOSE_DEADLINE, self.child.wait()).await {
                Ok(status) => status.ok().and_then(|status| status.code()),
                Err(_) => {
                    tracing::warn!(pid = self.pid, "killing a runner that did not exit in time");
                    let _ = self.child.kill().await;
                    None
                }
            };
            self.never_started = code == Some(runner::NOT_SET_UP);
            self.gone = true;
            runner_cleanup::forget_runner(self.pid);
        }
        RunnerLost {
            pid: self.pid,
            never_started: self.never_started,
            source,
        }
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        // Do not kill the runner: it must kill its command's children first. Closing the socket,
        // which follows this drop, makes it do that and exit. The runtime reaps it.
        if !self.gone {
            sys::kill(self.pid, Signal::CONT);
        }
    }
}
