//! The runner process: one thread, one `poll` loop, one attempt at a time.
//!
//! It is told what to do over a socket and knows nothing but the attempt in hand. It ends when its worker closes the socket or
//! dies, and takes the attempt with it.

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
pub use self::sandbox::{NOBODY, capped};
pub(crate) use self::settings::{ARGUMENT, FAULT, HOST_SOCKET, NOT_SET_UP, arguments};

/// What outlives an attempt.
pub(crate) struct RunnerProcess {
    control: ControlSocket,
    signals: Signals,
    attempt_id: Option<LeaseDeadlinePage>,
    /// Standard input of commands that have none.
    null: File,
    inherited: Arc<[CString]>,
    /// Where the functions of this program are called from, if it has any; or why they cannot be.
    cradle: Option<io::Result<ForkServer>>,
    title_idle: String,
    /// The connection of the host that it is to start.
    host_socket: Option<OwnedFd>,
    /// Looked for when the first attempt with limits comes.
    delegation: Option<Option<CgroupDelegation>>,
    /// Whether the other end speaks as this one does. A worker is of the same file; the supervisor of a container has to say so.
    is_understood: bool,
    /// Whether it is process 1 of a container, and has one attempt.
    is_init: bool,
    /// Whether that attempt is over.
    is_over: bool,
}

/// Runs a runner, a function in a sandbox, or process 1 of a container, and exits, if that is what this process was started for; else returns at once.
///
/// To be called first thing in `main`, before threads exist and before arguments are parsed. A program that has functions of its own for
/// tasks to run gives the one that calls them.
pub fn runner_main_if_asked(call: Option<FunctionCall>) {
    let mut arguments = std::env::args_os();
    let title = arguments.next();
    match arguments.next() {
        Some(argument) if argument == ARGUMENT => {}
        Some(argument) if argument == settings::FUNCTION => {
            let name = arguments
                .next()
                .map(|name| name.to_string_lossy().into_owned())
                .unwrap_or_default();
            process::exit(function::main(call, &name))
        }
        // Process 1 is nothing else. Any process may call itself so, and then finds nobody who leads it.
        Some(argument) if argument == INIT => start(
            RunnerProcess::set_up_init(),
            "process 1 of a container",
            FAULT,
        ),
        _ => return,
    }
    let fenced = arguments
        .next()
        .is_some_and(|argument| argument == settings::FENCED);
    let title = title
        .map(|title| title.to_string_lossy().into_owned())
        .unwrap_or_default();
    start(
        RunnerProcess::set_up(title, fenced, call),
        "a runner",
        NOT_SET_UP,
    )
}

fn start(runner: io::Result<RunnerProcess>, what: &str, otherwise: i32) -> ! {
    match runner {
        Ok(runner) => process::exit(runner.run()),
        Err(error) => {
            complain(format_args!(
                "cannot run as {what}, which only a worker can start: {error}"
            ));
            process::exit(otherwise);
        }
    }
}

impl RunnerProcess {
    fn set_up(title_idle: String, fenced: bool, call: Option<FunctionCall>) -> io::Result<Self> {
        title::init();
        title::set(&title_idle);
        let host_socket = settings::take_host_socket()?;
        let null = open_null()?;
        let socket = take(0, &null)?;
        let attempt_id = take(1, &null)?;
        keep_stderr(&null)?;
        let attempt_id = fenced
            .then(|| LeaseDeadlinePage::from_fd(attempt_id))
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
        let cradle = call.map(ForkServer::make);
        Ok(Self {
            host_socket,
            attempt_id,
            cradle,
            title_idle,
            ..Self::new(ControlSocket::of_socket(socket)?, signals, null)
        })
    }

    fn set_up_init() -> io::Result<Self> {
        // The command is the same user, and could otherwise write in its name.
        let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
        let null = open_null()?;
        let (input, output) = (take(0, &null)?, take(1, &null)?);
        let signals = Signals::take_over()?;
        Ok(Self {
            is_understood: false,
            is_init: true,
            ..Self::new(ControlSocket::of_pipes(input, output)?, signals, null)
        })
    }

    fn new(control: ControlSocket, signals: Signals, null: File) -> Self {
        Self {
            control,
            signals,
            attempt_id: None,
            null,
            inherited: inherited_environment().into(),
            cradle: None,
            host_socket: None,
            title_idle: String::new(),
            delegation: None,
            is_understood: true,
            is_init: false,
            is_over: false,
        }
    }

    /// Runs attempts until the worker is gone. Returns the exit code.
    fn run(mut self) -> i32 {
        loop {
            let attempted = match self.wait_for_start() {
                Ok(Some(request)) => self.attempt(request),
                Ok(None) => return 0,
                Err(hangup) => Err(hangup),
            };
            match attempted {
                Ok(()) => {}
                Err(ControlClosed::Closed) => return 0,
                Err(ControlClosed::Broken) => return settings::BROKEN,
                Err(ControlClosed::Malformed(error)) => return malformed(&error),
                Err(ControlClosed::OutOfTurn) => {
                    return malformed(&"a start came while an attempt was running");
                }
            }
        }
    }

    /// Idles until there is something to run; `None` if the runner is to end.
    fn wait_for_start(&mut self) -> Result<Option<ExecRequest>, ControlClosed> {
        loop {
            while !self.is_over
                && let Some(message) = self.next_message()?
            {
                match message {
                    ToRunner::Version(VERSION) => self.is_understood = true,
                    ToRunner::Version(other) => self.refuse_version(&other.to_string()),
                    ToRunner::Start(_) if !self.is_understood => {
                        self.refuse_version("an earlier one")
                    }
                    ToRunner::Start(request) => return Ok(Some(request.into_owned())),
                    // About the attempt that has just ended.
                    _ => {}
                }
            }
            if self.is_over && !self.control.has_outgoing() {
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
            self.control.attend(control)?;
        }
    }

    /// The next message. One that cannot be read before the version is known is of another version.
    fn next_message(&mut self) -> Result<Option<ToRunner<'static>>, ControlClosed> {
        match self.control.next() {
            Err(ControlClosed::Malformed(_)) if !self.is_understood => {
                self.refuse_version("another one");
                Ok(None)
            }
            next => next,
        }
    }

    /// Runs nothing for a supervisor of another version. The task goes back, and is charged nothing.
    fn refuse_version(&mut self, theirs: &str) {
        let message = format!(
            "the worker and process 1 of the container are of different versions (protocol {theirs}, inside {VERSION}): \
             restart the worker"
        );
        self.control
            .put(&RunnerEvent::Done(Box::new(ExecResult::without_start(
                ExitStatus::NoHandler { message },
            ))));
        self.control.flush();
        self.is_over = true;
    }

    fn attempt(&mut self, mut request: ExecRequest) -> Result<(), ControlClosed> {
        // A function that is forked reads its input from the request; every other process reads it from a pipe.
        let is_forked =
            matches!(request.program, ExecTarget::Function(_)) && request.sandbox.is_none();
        let stdin = if is_forked {
            None
        } else {
            request.stdin.take()
        };
        let done = match Attempt::begin(self, &request, stdin) {
            Ok(attempt) => attempt.run(self)?,
            Err(exit) => ExecResult::without_start(exit),
        };
        // Before the worker can know: a task that is over has no process, and whoever looks for one by its state must not find this.
        title::set(&self.title_idle);
        self.control.put(&RunnerEvent::Done(Box::new(done)));
        self.control.flush();
        self.is_over = self.is_init;
        let is_usable = |cradle: &io::Result<ForkServer>| {
            cradle.as_ref().is_ok_and(|cradle| !cradle.is_broken())
        };
        if is_forked && !self.cradle.as_ref().is_none_or(is_usable) {
            complain(format_args!(
                "a runner leaves: what it forks functions from is not there, or stands still"
            ));
            return Err(ControlClosed::Broken);
        }
        Ok(())
    }

    /// The watch over an attempt with limits.
    fn watch(&mut self, start: &ExecRequest, limits: &Limits, now: Duration) -> Option<LimitWatch> {
        let delegation = self
            .delegation
            .get_or_insert_with(CgroupDelegation::find)
            .as_ref();
        let name = format!("raddle-{}-{}", start.tid, start.attempt);
        // Only where the task asks for a limit: to join a group takes longer than many a task.
        let delegation = delegation.filter(|_| !start.limits.is_empty());
        LimitWatch::new(limits, limit_watch::group(delegation, &name, limits), now)
    }

    fn show(&self, start: &ExecRequest, status: &str) {
        title::set(&raddle_model::title::format(start.tid, &start.name, status));
    }
}

fn malformed(error: &dyn std::fmt::Display) -> i32 {
    complain(format_args!(
        "a runner ends because of what its worker sent: {error}"
    ));
    FAULT
}

/// Says something to whoever reads the worker's stderr, if anybody does: `eprintln!` would panic where nobody can.
fn complain(what: std::fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr(), "raddle: {what}");
}

/// Opens what stands for nothing. From here on only descriptors 0 to 2 can reach a command, whatever the worker left open.
fn open_null() -> io::Result<File> {
    sys::close_on_exec();
    let null = File::options().read(true).write(true).open("/dev/null")?;
    Ok(File::from(sys::dup_above(null.as_fd(), 10)?))
}

/// Leaves standard error as it is, if there is one.
fn keep_stderr(null: &File) -> io::Result<()> {
    if sys::dup_above(io::stderr().as_fd(), 10).is_err() {
        sys::dup_onto(null.as_fd(), 2)?;
    }
    Ok(())
}

/// Takes a standard descriptor away and leaves `/dev/null` in its place.
fn take(number: i32, null: &File) -> io::Result<OwnedFd> {
    // SAFETY: the three standard descriptors are never closed by this process; an absent one gives an error.
    let taken = sys::dup_above(unsafe { BorrowedFd::borrow_raw(number) }, 10)?;
    sys::dup_onto(null.as_fd(), number)?;
    debug_assert!(taken.as_raw_fd() >= 10);
    Ok(taken)
}

fn is_socket(found: &std::fs::Metadata) -> bool {
    use std::os::unix::fs::FileTypeExt;
    found.file_type().is_socket()
}
