//! The runner process: one thread, one `poll` loop, one attempt at a time.
//!
//! The worker sends requests over a socket; the runner knows only its current attempt. When the
//! worker closes the socket or dies, the runner kills the attempt and exits.

mod attempt;
mod capture;
mod child;
mod control;
mod fork_server;
mod function;
mod init;
mod limit_watch;
mod program;
mod sandbox;
mod settings;
mod signals;
mod stop;
mod throttle;

use std::{
    ffi::CString,
    fs::File,
    io::{self, Write},
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    process,
    sync::Arc,
    time::Duration,
};

use raddle_model::{ExitStatus, Limits};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};

use self::{
    attempt::Attempt,
    control::{ControlClosed, ControlSocket},
    fork_server::ForkServer,
    limit_watch::LimitWatch,
    program::inherited_environment,
    signals::Signals,
};
use crate::{
    cgroup::CgroupDelegation,
    container::{INIT, VERSION},
    lease_deadline::LeaseDeadlinePage,
    message::{ExecRequest, ExecResult, ExecTarget, RunnerEvent, ToRunner},
    sys, title,
};

pub use self::function::FunctionCall;
pub(crate) use self::sandbox::sweep_scratch;
pub use self::sandbox::{OVERFLOW_UID, cap_limits};
pub(crate) use self::settings::{FAULT, HOST_SOCKET, NOT_SET_UP, RUNNER_ARGUMENT, arguments};

/// State that outlives an attempt.
pub(crate) struct RunnerProcess {
    control: ControlSocket,
    signals: Signals,
    lease_deadline: Option<LeaseDeadlinePage>,
    /// `/dev/null`: standard input of commands without input.
    null: File,
    inherited: Arc<[CString]>,
    /// Forks the functions of this program, if it has any; or the reason why it cannot.
    fork_server: Option<io::Result<ForkServer>>,
    title_idle: String,
    /// The connection of the host that this runner must start.
    host_socket: Option<OwnedFd>,
    /// Found when the first attempt with limits starts. The inner `None` means that no cgroup is
    /// delegated.
    delegation: Option<Option<CgroupDelegation>>,
    /// Whether the other end speaks the same protocol version. A worker runs the same file; the
    /// supervisor of a container must send its version.
    version_known: bool,
    /// Whether this is process 1 of a container, which runs one attempt.
    is_init: bool,
    /// Whether that attempt is over.
    is_done: bool,
}

/// If this process was started as a runner, as a function in a sandbox or as process 1 of a
/// container, does that work and exits. Otherwise returns at once.
///
/// Call this first in `main`, before threads exist and before arguments are parsed. A program whose
/// functions may be tasks passes `call`, which calls them.
pub fn runner_main_if_requested(call: Option<FunctionCall>) {
    let mut arguments = std::env::args_os();
    let title = arguments.next();
    match arguments.next() {
        Some(argument) if argument == RUNNER_ARGUMENT => {}
        Some(argument) if argument == settings::FUNCTION_ARGUMENT => {
            let name = arguments
                .next()
                .map(|name| name.to_string_lossy().into_owned())
                .unwrap_or_default();
            process::exit(function::main(call, &name))
        }
        // Any process may be started with this argument. Without a supervisor, it gets no request
        // and exits.
        Some(argument) if argument == INIT => run_process(
            RunnerProcess::set_up_init(),
            "process 1 of a container",
            FAULT,
        ),
        _ => return,
    }
    let has_lease = arguments
        .next()
        .is_some_and(|argument| argument == settings::LEASE);
    let title = title
        .map(|title| title.to_string_lossy().into_owned())
        .unwrap_or_default();
    run_process(
        RunnerProcess::set_up(title, has_lease, call),
        "a runner",
        NOT_SET_UP,
    )
}

fn run_process(runner: io::Result<RunnerProcess>, role: &str, failure_code: i32) -> ! {
    match runner {
        Ok(runner) => process::exit(runner.run()),
        Err(error) => {
            print_error(format_args!(
                "cannot run as {role}, which only a worker can start: {error}"
            ));
            process::exit(failure_code);
        }
    }
}

impl RunnerProcess {
    fn set_up(title_idle: String, has_lease: bool, call: Option<FunctionCall>) -> io::Result<Self> {
        title::init();
        title::set(&title_idle);
        let host_socket = settings::take_host_socket()?;
        let null = open_null()?;
        let socket = take_descriptor(0, &null)?;
        let lease_deadline = take_descriptor(1, &null)?;
        keep_stderr(&null)?;
        let lease_deadline = has_lease
            .then(|| LeaseDeadlinePage::from_fd(lease_deadline))
            .transpose()?;
        if File::from(socket.try_clone()?)
            .metadata()
            .is_ok_and(|found| !is_socket(&found))
        {
            return Err(io::Error::other("standard input is not a socket"));
        }
        let signals = Signals::take_over()?;
        sys::set_subreaper()?;
        sys::wake_when_parent_dies();
        // A fork server would hold the connection of the host open.
        let call = call.filter(|_| host_socket.is_none());
        let fork_server = call.map(ForkServer::spawn);
        Ok(Self {
            lease_deadline,
            fork_server,
            host_socket,
            title_idle,
            ..Self::new(ControlSocket::from_socket(socket)?, signals, null)
        })
    }

    fn set_up_init() -> io::Result<Self> {
        // The command runs as the same user and could otherwise write to this process's descriptors
        // through /proc.
        let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
        let null = open_null()?;
        let (input, output) = (take_descriptor(0, &null)?, take_descriptor(1, &null)?);
        let signals = Signals::take_over()?;
        Ok(Self {
            version_known: false,
            is_init: true,
            ..Self::new(ControlSocket::from_pipes(input, output)?, signals, null)
        })
    }

    fn new(control: ControlSocket, signals: Signals, null: File) -> Self {
        Self {
            control,
            signals,
            lease_deadline: None,
            null,
            inherited: inherited_environment().into(),
            fork_server: None,
            host_socket: None,
            title_idle: String::new(),
            delegation: None,
            version_known: true,
            is_init: false,
            is_done: false,
        }
    }

    /// Runs attempts until the worker disconnects. Returns the exit code.
    fn run(mut self) -> i32 {
        loop {
            let attempted = match self.wait_for_start() {
                Ok(Some(request)) => self.attempt(request),
                Ok(None) => return 0,
                Err(closed) => Err(closed),
            };
            match attempted {
                Ok(()) => {}
                Err(ControlClosed::Closed) => return 0,
                Err(ControlClosed::ForkServerFailed) => return settings::FORK_SERVER_FAILED,
                Err(ControlClosed::Malformed(error)) => return report_malformed(&error),
                Err(ControlClosed::UnexpectedStart) => {
                    return report_malformed(&"a start came while an attempt was running");
                }
            }
        }
    }

    /// Waits for the next request. `None` means that the runner must exit.
    fn wait_for_start(&mut self) -> Result<Option<ExecRequest>, ControlClosed> {
        loop {
            while !self.is_done
                && let Some(message) = self.next_message()?
            {
                match message {
                    ToRunner::Version(VERSION) => self.version_known = true,
                    ToRunner::Version(other) => self.refuse_version(&other.to_string()),
                    ToRunner::Start(_) if !self.version_known => {
                        self.refuse_version("an earlier one")
                    }
                    ToRunner::Start(request) => return Ok(Some(request.into_owned())),
                    // A command for the attempt that has just ended.
                    _ => {}
                }
            }
            if self.is_done && !self.control.has_outgoing() {
                return Ok(None);
            }
            let [input, output] = self.control.pollfds();
            let mut fds = [self.signals.pollfd(), input, output];
            let silence = self
                .control
                .deadline()
                .map(|deadline| deadline.saturating_sub(sys::now()));
            sys::poll(&mut fds, silence).map_err(|_| ControlClosed::Closed)?;
            let [signals, control @ ..] = fds.map(|fd| fd.revents);
            if signals != 0 && self.signals.read().end > 0 {
                return Ok(None);
            }
            self.control.handle_events(control)?;
        }
    }

    /// The next message. A message that cannot be read before the version is known belongs to
    /// another version.
    fn next_message(&mut self) -> Result<Option<ToRunner<'static>>, ControlClosed> {
        match self.control.next() {
            Err(ControlClosed::Malformed(_)) if !self.version_known => {
                self.refuse_version("another one");
                Ok(None)
            }
            next => next,
        }
    }

    /// Refuses to run an attempt for a supervisor of another version. The task goes back to its
    /// queue, and the attempt is not charged.
    fn refuse_version(&mut self, theirs: &str) {
        let message = format!(
            "the worker and process 1 of the container are of different versions (protocol {theirs}, inside {VERSION}): \
             restart the worker"
        );
        self.control
            .queue(&RunnerEvent::Done(Box::new(ExecResult::not_started(
                ExitStatus::NoHandler { message },
            ))));
        self.control.flush();
        self.is_done = true;
    }

    fn attempt(&mut self, mut request: ExecRequest) -> Result<(), ControlClosed> {
        // A forked function gets its input from the request; every other process reads it from a
        // pipe.
        let is_forked =
            matches!(request.program, ExecTarget::Function(_)) && request.sandbox.is_none();
        let stdin = if is_forked {
            None
        } else {
            request.stdin.take()
        };
        let done = match Attempt::begin(self, &request, stdin) {
            Ok(attempt) => attempt.run(self)?,
            Err(exit) => ExecResult::not_started(exit),
        };
        // Reset the title before the worker learns of the end: a search for the titles of a
        // finished task must find no process.
        title::set(&self.title_idle);
        self.control.queue(&RunnerEvent::Done(Box::new(done)));
        self.control.flush();
        self.is_done = self.is_init;
        let is_usable = |fork_server: &io::Result<ForkServer>| {
            fork_server
                .as_ref()
                .is_ok_and(|fork_server| !fork_server.is_broken())
        };
        if is_forked && !self.fork_server.as_ref().is_none_or(is_usable) {
            print_error(format_args!(
                "a runner exits: the fork server of its functions is gone or hangs"
            ));
            return Err(ControlClosed::ForkServerFailed);
        }
        Ok(())
    }

    /// Starts to watch the limits of an attempt.
    fn start_watch(
        &mut self,
        start: &ExecRequest,
        limits: &Limits,
        now: Duration,
    ) -> Option<LimitWatch> {
        let delegation = self
            .delegation
            .get_or_insert_with(CgroupDelegation::find)
            .as_ref();
        let name = format!("raddle-{}-{}", start.tid, start.attempt);
        // Only if the task asks for a limit: joining a cgroup takes longer than many tasks run.
        let delegation = delegation.filter(|_| !start.limits.is_empty());
        LimitWatch::new(limits, limit_watch::cgroup(delegation, &name, limits), now)
    }

    fn set_title_status(&self, start: &ExecRequest, status: &str) {
        title::set(&raddle_model::title::format(start.tid, &start.name, status));
    }
}

fn report_malformed(error: &dyn std::fmt::Display) -> i32 {
    print_error(format_args!(
        "a runner exits because of what its worker sent: {error}"
    ));
    FAULT
}

/// Writes to the worker's standard error, and ignores failures: `eprintln!` panics if it is closed.
fn print_error(message: std::fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr(), "raddle: {message}");
}

/// Opens `/dev/null`. Afterwards only descriptors 0 to 2 can reach a command, whatever the worker
/// left open.
fn open_null() -> io::Result<File> {
    sys::close_on_exec();
    let null = File::options().read(true).write(true).open("/dev/null")?;
    Ok(File::from(sys::dup_above(null.as_fd(), 10)?))
}

/// Keeps standard error, or replaces it with `/dev/null` if it is closed.
fn keep_stderr(null: &File) -> io::Result<()> {
    if sys::dup_above(io::stderr().as_fd(), 10).is_err() {
        sys::dup_onto(null.as_fd(), 2)?;
    }
    Ok(())
}

/// Moves a standard descriptor away and puts `/dev/null` in its place.
fn take_descriptor(number: i32, null: &File) -> io::Result<OwnedFd> {
    // SAFETY: this process never closes the three standard descriptors; a missing one gives an
    // error.
    let taken = sys::dup_above(unsafe { BorrowedFd::borrow_raw(number) }, 10)?;
    sys::dup_onto(null.as_fd(), number)?;
    debug_assert!(taken.as_raw_fd() >= 10);
    Ok(taken)
}

fn is_socket(found: &std::fs::Metadata) -> bool {
    use std::os::unix::fs::FileTypeExt;
    found.file_type().is_socket()
}
