//! The worker's handle on a runner.

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

/// A runner that was told to end, or whose socket is closed, has nothing to do but kill and reap.
const CLOSE_DEADLINE: Duration = Duration::from_secs(10);
const KEPT: usize = 64 * 1024;

/// How to start a runner.
#[derive(Clone, Debug)]
pub struct RunnerOptions {
    /// The program, which calls [`crate::runner_main_if_asked`]. By default this very program: the file that this process was
    /// started from, also when another has taken its place on the disk since.
    pub program: PathBuf,
    /// The title of a runner that has nothing to run.
    pub title_idle: String,
    /// The page that holds the deadline of the worker's lease. Without it attempts outlive a lease.
    pub attempt_id: Option<Arc<LeaseDeadlinePage>>,
    /// Variables of this process that neither the runner nor what it runs inherits.
    pub without: &'static [&'static str],
}

/// A runner process, reused for one attempt after another.
///
/// Dropping the handle closes the runner's socket: the runner kills what it runs, down to the last grandchild, and exits.
#[derive(Debug)]
pub struct Runner {
    child: Child,
    pid: u32,
    socket: UnixStream,
    incoming: Decoder,
    outgoing: Vec<u8>,
    /// How much of `outgoing` was sent.
    sent: usize,
    /// The account of an attempt that no runner would take.
    refused: Option<Box<ExecResult>>,
    gone: bool,
    /// It was gone before it was a runner.
    never_began: bool,
}

/// The runner has ended, or does not speak our language. Whatever it ran is dead or dying; what its command left behind is adopted by a
/// worker that is a subreaper, and [`crate::reap_orphans`] ends it.
#[derive(Debug, thiserror::Error)]
#[error("the runner with pid {pid} is gone")]
pub struct RunnerLost {
    pid: u32,
    never_began: bool,
    #[source]
    source: Option<io::Error>,
}

impl RunnerLost {
    /// Whether the system has not given it what a runner needs, so that it has run nothing. Nobody has killed it.
    pub fn never_began(&self) -> bool {
        self.never_began
    }
}

impl Default for RunnerOptions {
    fn default() -> Self {
        Self {
            program: "/proc/self/exe".into(),
            title_idle: "raddle-runner".into(),
            attempt_id: None,
            without: &[],
        }
    }
}

impl Runner {
    /// Starts a runner.
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
        let stdout = match &opts.attempt_id {
            Some(page) => Stdio::from(page.as_fd().try_clone_to_owned()?),
            None => Stdio::null(),
        };
        let title = opts.title_idle.replace('\0', "_");
        let mut command = Command::new(&opts.program);
        // Nothing here may take std off its posix_spawn path: forking a large worker costs tens of milliseconds.
        command
            .arg0(OsStr::new(&title))
            .args(runner::arguments(opts.attempt_id.is_some()))
            .stdin(OwnedFd::from(theirs))
            .stdout(stdout)
            .stderr(Stdio::inherit())
            .process_group(0);
        for name in opts.without {
            command.env_remove(name);
        }
        if let Some(socket) = &host {
            command.env(runner::HOST_SOCKET, socket.as_raw_fd().to_string());
        }
        let (pid, child) = runner_cleanup::starting(|| {
            // Inheritable only here, where no other runner is being started. std keeps its fast path that way.
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
            refused: None,
            gone: false,
            never_began: false,
        }
    }

    /// The runner's process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether the runner's process is still there. It may have been killed while it had nothing to run.
    pub fn is_alive(&mut self) -> bool {
        !self.gone && matches!(self.child.try_wait(), Ok(None))
    }

    /// Gives the runner an attempt to run. The one before must be done.
    pub async fn start(&mut self, request: &ExecRequest) -> Result<(), RunnerLost> {
        let before = self.outgoing.len();
        frame::encode_into(&mut self.outgoing, &ToRunner::Start(Cow::Borrowed(request)));
        if self.outgoing.len() - before > MAX_TO_RUNNER {
            self.outgoing.truncate(before);
            let message =
                "more than 1 GiB of standard input, arguments and environment: use a file".into();
            self.refused = Some(Box::new(ExecResult::without_start(
                ExitStatus::SpawnFailed { message },
            )));
        }
        self.flush().await
    }

    /// Sends an order about the attempt that is running.
    pub async fn send(&mut self, order: RunnerCommand) -> Result<(), RunnerLost> {
        if matches!(order, RunnerCommand::Stop | RunnerCommand::Kill) && !self.gone {
            // A runner that somebody has stopped could not obey.
            sys::kill(self.pid, Signal::CONT);
        }
        frame::encode_into(&mut self.outgoing, &ToRunner::Order(order));
        self.flush().await
    }

    /// The next news of the attempt that is running. Cancel-safe: nothing is lost when the future is dropped.
    pub async fn next(&mut self) -> Result<RunnerEvent, RunnerLost> {
        if let Some(done) = self.refused.take() {
            return Ok(RunnerEvent::Done(done));
        }
        self.flush().await?;
        loop {
            match self.incoming.next() {
                Ok(Some(notice)) => return Ok(notice),
                Ok(None) => {}
                Err(error) => {
                    tracing::error!(pid = self.pid, %error, "a runner sent something unreadable and is killed");
                    let _ = self.child.start_kill();
                    return Err(self.ended(Some(io::Error::other(error))).await);
                }
            }
            self.incoming.buffer().reserve(4096);
            match self.socket.read_buf(self.incoming.buffer()).await {
                Ok(0) => return Err(self.ended(None).await),
                Ok(_) => {}
                Err(error) => return Err(self.ended(Some(error)).await),
            }
        }
    }

    /// Ends the runner and waits until it is gone. What it still runs is killed.
    pub async fn close(mut self) {
        // One that is closed already needs no word.
        let _ = self.socket.shutdown().await;
        self.ended(None).await;
    }

    /// Sends what was not sent yet. What a cancelled call leaves is sent by the next one, so that frames stay whole.
    async fn flush(&mut self) -> Result<(), RunnerLost> {
        while self.sent < self.outgoing.len() {
            match self.socket.write(&self.outgoing[self.sent..]).await {
                Ok(n) => self.sent += n,
                // It has left, and nobody needs the rest. That shows when the socket is read, behind what it has said before.
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
                    ) =>
                {
                    break;
                }
                Err(error) => return Err(self.ended(Some(error)).await),
            }
        }
        self.outgoing.clear();
        self.outgoing.shrink_to(KEPT);
        self.sent = 0;
        Ok(())
    }

    /// Waits for the process. A socket closes a little before its process has given its children away: whoever hears that the
    /// runner is gone shall find the orphans adopted.
    async fn ended(&mut self, source: Option<io::Error>) -> RunnerLost {
        if !self.gone {
            // A stopped runner could not notice that it is to end.
            sys::kill(self.pid, Signal::CONT);
            let code = match timeout(CLOSE_DEADLINE, self.child.wait()).await {
                Ok(status) => status.ok().and_then(|status| status.code()),
                Err(_) => {
                    tracing::warn!(pid = self.pid, "a runner did not end in time and is killed");
                    let _ = self.child.kill().await;
                    None
                }
            };
            self.never_began = code == Some(runner::NOT_SET_UP);
            self.gone = true;
            runner_cleanup::ended(self.pid);
        }
        RunnerLost {
            pid: self.pid,
            never_began: self.never_began,
            source,
        }
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        // Not killed: killed it could not take its command's children with it. The socket, closed when this is over, ends it;
        // the runtime reaps it.
        if !self.gone {
            sys::kill(self.pid, Signal::CONT);
        }
    }
}
