//! The runner process: one thread, one `poll` loop, one attempt at a time.
//!
//! It is told what to do over a socket and knows nothing but the attempt in hand. It ends when its worker closes the socket or
//! dies, and takes the attempt with it.

mod attempt;
mod capture;
mod child;
mod control;
mod cradle;
mod ending;
mod function;
mod init;
mod program;
mod sandbox;
mod settings;
mod signals;
mod throttle;
mod watch;

use std::{
    ffi::CString,
    fs::File,
    io::{self, Write},
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    process,
    sync::Arc,
    time::Duration,
};

use raddle_core::Limits;

use self::{
    attempt::Attempt,
    child::Stack,
    control::{Control, Hangup},
    cradle::Cradle,
    program::inherited_environment,
    signals::Signals,
    watch::Watch,
};
use crate::{
    cgroup::Delegation,
    contained::INIT,
    fence::FencePage,
    frame::{self, MAX_STDIN, Start, ToRunner},
    message::{Done, Program},
    sys, title,
};

pub use self::function::Call;
pub use self::sandbox::capped;
pub(crate) use self::sandbox::sweep_scratch;
pub(crate) use self::settings::{ARGUMENT, FAULT, NOT_SET_UP, arguments};

/// What outlives an attempt.
pub(crate) struct Runner {
    control: Control,
    signals: Signals,
    fence: Option<FencePage>,
    /// Standard input of commands that have none.
    null: File,
    stack: Stack,
    inherited: Arc<[CString]>,
    /// Where the functions of this program are called from, if it has any; or why they cannot be.
    cradle: Option<io::Result<Cradle>>,
    /// The buffers of output streams, used again and again.
    buffers: Vec<Vec<u8>>,
    title_idle: String,
    /// Looked for when the first attempt with limits comes.
    delegation: Option<Option<Delegation>>,
}

/// An attempt to run, and its input.
type Work = (Box<Start>, Option<Vec<u8>>);

/// Runs a runner, a function in a sandbox, or process 1 of a container, and exits, if that is what this process was started for; else returns at once.
///
/// To be called first thing in `main`, before threads exist and before arguments are parsed. A program that has functions of its own for
/// tasks to run gives the one that calls them.
pub fn runner_main_if_asked(call: Option<Call>) {
    let mut arguments = std::env::args_os();
    let title = arguments.next();
    match arguments.next() {
        Some(argument) if argument == ARGUMENT => {}
        Some(argument) if argument == settings::FUNCTION => {
            let name = arguments.next().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            process::exit(function::main(call, &name))
        }
        // Process 1 is nothing else. Any process may call itself so, and then finds nobody who leads it.
        Some(argument) if argument == INIT => process::exit(init::main()),
        _ => return,
    }
    let fenced = arguments.next().is_some_and(|argument| argument == settings::FENCED);
    let title = title.map(|title| title.to_string_lossy().into_owned()).unwrap_or_default();
    match Runner::set_up(title, fenced, call) {
        Ok(runner) => process::exit(runner.run()),
        Err(error) => {
            complain(format_args!("cannot run as a runner, which only a worker can start: {error}"));
            process::exit(NOT_SET_UP);
        }
    }
}

impl Runner {
    fn set_up(title_idle: String, fenced: bool, call: Option<Call>) -> io::Result<Self> {
        title::init();
        title::set(&title_idle);
        let null = open_null()?;
        let socket = take(0, &null)?;
        let fence = take(1, &null)?;
        keep_stderr(&null)?;
        let fence = fenced.then(|| FencePage::from_fd(fence)).transpose()?;
        if File::from(socket.try_clone()?).metadata().is_ok_and(|found| !is_socket(&found)) {
            return Err(io::Error::other("standard input is not a socket"));
        }
        let signals = Signals::take_over()?;
        sys::set_subreaper()?;
        sys::wake_when_parent_dies();
        Ok(Self {
            control: Control::new(socket)?,
            signals,
            fence,
            null,
            stack: Stack::new()?,
            inherited: inherited_environment().into(),
            cradle: call.map(Cradle::make),
            buffers: Vec::new(),
            title_idle,
            delegation: None,
        })
    }

    /// Runs attempts until the worker is gone. Returns the exit code.
    fn run(mut self) -> i32 {
        loop {
            let (start, stdin) = match self.wait_for_start() {
                Ok(Some(found)) => found,
                Ok(None) | Err(Hangup::Closed | Hangup::Broken) => return 0,
                Err(Hangup::Malformed(error)) => return malformed(&error),
            };
            match self.attempt(&start, stdin) {
                Ok(()) => {}
                Err(Hangup::Closed) => return 0,
                Err(Hangup::Broken) => return settings::BROKEN,
                Err(Hangup::Malformed(error)) => return malformed(&error),
            }
        }
    }

    /// Idles until there is something to run; `None` if somebody asked the runner to end.
    fn wait_for_start(&mut self) -> Result<Option<Work>, Hangup> {
        let mut stdin = Vec::new();
        loop {
            while let Some(frame) = self.control.next()? {
                match frame {
                    ToRunner::Start(start) => {
                        let stdin = start.has_stdin.then_some(stdin);
                        return Ok(Some((start, stdin)));
                    }
                    ToRunner::Stdin(bytes) if stdin.len() + bytes.len() <= MAX_STDIN => stdin.extend(bytes),
                    ToRunner::Stdin(bytes) => {
                        return Err(Hangup::Malformed(frame::Malformed::TooLong(stdin.len() + bytes.len())));
                    }
                    // It was about the attempt that has just ended.
                    ToRunner::Order(_) => {}
                }
            }
            let signals = libc::pollfd { fd: self.signals.raw_fd(), events: libc::POLLIN, revents: 0 };
            let mut fds = [self.control.pollfd(), signals];
            sys::poll(&mut fds, None).map_err(|_| Hangup::Closed)?;
            if fds[1].revents != 0 && self.signals.read().end > 0 {
                return Ok(None);
            }
            if fds[0].revents & libc::POLLOUT != 0 {
                self.control.flush();
            }
            if fds[0].revents & !libc::POLLOUT != 0 {
                self.control.read()?;
            }
        }
    }

    fn attempt(&mut self, start: &Start, stdin: Option<Vec<u8>>) -> Result<(), Hangup> {
        let done = match Attempt::begin(self, start, stdin) {
            Ok(attempt) => attempt.run(self)?,
            Err(exit) => Done::without_start(exit),
        };
        // Before the worker can know: a task that is over has no process, and whoever looks for one by its state must not find this.
        title::set(&self.title_idle);
        frame::put_done(&mut self.control.outgoing, &done);
        self.control.flush();
        self.buffers.clear();
        for mut used in [done.stdout, done.stderr, done.reply] {
            used.clear();
            self.buffers.push(used);
        }
        self.control.trim();
        let is_usable = |cradle: &io::Result<Cradle>| cradle.as_ref().is_ok_and(|cradle| !cradle.is_broken());
        if matches!(start.program, Program::Function(_)) && !self.cradle.as_ref().is_none_or(is_usable) {
            complain(format_args!("a runner leaves: what it forks functions from is not there, or stands still"));
            return Err(Hangup::Broken);
        }
        Ok(())
    }

    /// The watch over an attempt with limits.
    fn watch(&mut self, start: &Start, limits: &Limits, now: Duration) -> Option<Watch> {
        let delegation = self.delegation.get_or_insert_with(Delegation::find).as_ref();
        let name = format!("raddle-{}-{}", start.tid, start.attempt);
        // Only where the task asks for a limit: to join a group takes longer than many a task.
        let delegation = delegation.filter(|_| !start.limits.is_empty());
        Watch::new(limits, watch::group(delegation, &name, limits), now)
    }

    fn show(&self, start: &Start, status: &str) {
        title::set(&raddle_core::title::format(start.tid, &start.name, status));
    }
}

fn malformed(error: &frame::Malformed) -> i32 {
    complain(format_args!("a runner ends because of what its worker sent: {error}"));
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
