//! Process 1 of a container: one thread, one `poll` loop, one command. See [`crate::contained`] for whom it talks to.

mod bounds;
mod guard;

use std::{
    fs::File,
    io::{self, PipeWriter},
    os::fd::{AsFd, AsRawFd, OwnedFd},
    time::Duration,
};

use raddle_core::{Exit, Limits, Tid, Usage};

use super::{
    FAULT,
    capture::Capture,
    child::{self, Plan, Stack},
    open_null,
    program::{Prepared, inherited_environment},
    signals::Signals,
    take,
};
use crate::{
    contained::{Begin, Ended, FromInit, SILENCE, ToInit},
    frame::Start,
    message::{Program, Stream},
    sys::{self, Wait},
};

/// Nothing of a title is shown in there, but a request has to have an id.
const NOBODY: u64 = 1_000_000_000_000_000_000;
/// How often it is looked whether a bound was run into.
const LOOK: Duration = Duration::from_millis(100);
/// How long what was killed is waited for. The kernel ends the rest with this process.
const REAP_WITHIN: Duration = Duration::from_secs(2);
/// Output that was not sent keeps the command from writing more.
const FULL: usize = 256 << 10;
const READ: usize = 64 << 10;
/// Its processes are ended for want of memory before this one is, which has to tell of it.
const FIRST_TO_GO: &str = "500";
const LAST_TO_GO: &str = "0";
/// The exit codes of process 1, which nobody relies on: what there is to say was said.
const DONE: i32 = 0;
const LEFT: i32 = 1;

struct Init {
    input: OwnedFd,
    incoming: Vec<u8>,
    output: OwnedFd,
    outgoing: Vec<u8>,
    signals: Signals,
    null: File,
    /// When the leash was last heard of.
    heard: Duration,
}

/// The command, while it runs.
struct Command {
    pid: u32,
    status: Option<i32>,
    /// How the attempt ends if that is not the command's own doing.
    cause: Option<Exit>,
    /// When to look whether it has run into a bound.
    look_at: Duration,
    usage: Usage,
    captures: Vec<Capture>,
    feed: Option<Feed>,
}

/// Standard input on its way.
struct Feed {
    writer: PipeWriter,
    bytes: Vec<u8>,
    ends: bool,
}

/// Nobody is there any more to run anything for.
struct Unleashed;

/// Runs as process 1 of a container. Returns the exit code.
pub(super) fn main() -> i32 {
    let mut init = match Init::set_up() {
        Ok(init) => init,
        Err(error) => {
            super::complain(format_args!("cannot be process 1 of a container, which only a worker can start: {error}"));
            return FAULT;
        }
    };
    match init.live() {
        Ok(()) => DONE,
        // Whatever runs ends with process 1.
        Err(Unleashed) => LEFT,
    }
}

impl Init {
    fn set_up() -> io::Result<Self> {
        // The command is the same user, and could otherwise write in its name.
        let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
        let null = open_null()?;
        let (input, output) = (take(0, &null)?, take(1, &null)?);
        for fd in [&input, &output] {
            sys::set_nonblocking(fd.as_fd())?;
        }
        let signals = Signals::take_over()?;
        Ok(Self { input, incoming: Vec::new(), output, outgoing: Vec::new(), signals, null, heard: sys::now() })
    }

    fn live(&mut self) -> Result<(), Unleashed> {
        let begin = self.wait_for_begin()?;
        let ended = match self.start(&begin) {
            Err(exit) => Ended { exit, usage: Usage::default() },
            Ok(mut command) => {
                while command.status.is_none() {
                    self.turn(&mut command)?;
                }
                self.sweep(&mut command)?;
                command.conclude()
            }
        };
        FromInit::Ended(Box::new(ended)).put(&mut self.outgoing);
        while !self.outgoing.is_empty() {
            self.wait(&mut [], None)?;
        }
        Ok(())
    }

    fn wait_for_begin(&mut self) -> Result<Begin, Unleashed> {
        loop {
            match self.next()? {
                Some(ToInit::Begin(begin)) => return Ok(*begin),
                Some(_) => {}
                None => self.wait(&mut [], None)?,
            }
        }
    }

    /// The next word of the leash. What is none ends everything.
    fn next(&mut self) -> Result<Option<ToInit>, Unleashed> {
        ToInit::take(&mut self.incoming).map_err(|_| Unleashed)
    }

    fn start(&self, begin: &Begin) -> Result<Command, Exit> {
        let failed = |what: &str, error: io::Error| Exit::SpawnFailed { message: format!("{what}: {error}") };
        match guard::check() {
            Ok(None) => {}
            Ok(Some(lacks)) => {
                let message =
                    format!("the container engine gave no container with {lacks}, and so it runs nothing there");
                return Err(Exit::SpawnFailed { message });
            }
            Err(error) => return Err(failed("what a container is like cannot be seen", error)),
        }
        let start = request(begin);
        let prepared = Prepared::new(&start, &inherited_environment())?;
        let Some(executable) = &prepared.executable else { return Err(Exit::Killed) };
        let pipe = |error| failed("the container has no pipe", error);
        let open = |stream| Capture::new(stream, Vec::new()).map_err(pipe);
        let captures = vec![open(Stream::Stdout)?, open(Stream::Stderr)?];
        let (reader, feed) = match begin.has_input.then(io::pipe).transpose().map_err(pipe)? {
            None => (None, None),
            Some((reader, writer)) => {
                sys::set_nonblocking(writer.as_fd()).map_err(pipe)?;
                (Some(reader), Some(Feed { writer, bytes: Vec::new(), ends: false }))
            }
        };
        let plan = Plan {
            envp: &prepared.envp(),
            cwd: None,
            stdin: reader.as_ref().map_or(self.null.as_raw_fd(), AsRawFd::as_raw_fd),
            outputs: &captures.iter().map(Capture::command_end).collect::<Vec<_>>(),
            // Not asked of the engine, which would bound itself by it while it makes the container.
            rlimits: &[(libc::RLIMIT_NOFILE, begin.max_fds)],
            cgroup: None,
            leads: true,
        };
        let mut stack = Stack::new().map_err(|error| failed("the container has no memory", error))?;
        stand_in_line(FIRST_TO_GO);
        let spawned = child::spawn(&mut stack, &plan, executable);
        stand_in_line(LAST_TO_GO);
        let pid = spawned.map_err(|(step, error)| prepared.failure(&start, step, &error))?;
        let (look_at, usage) = (sys::now() + LOOK, Usage::default());
        Ok(Command { pid, status: None, cause: None, look_at, usage, captures, feed })
    }

    /// Waits for something to happen to the command, and takes it in.
    fn turn(&mut self, command: &mut Command) -> Result<(), Unleashed> {
        let nothing = libc::pollfd { fd: -1, events: 0, revents: 0 };
        let mut fds = [nothing, command.feed.as_ref().map_or(nothing, Feed::pollfd), nothing, nothing];
        fds[0] = libc::pollfd { fd: self.signals.raw_fd(), events: libc::POLLIN, revents: 0 };
        let reading = self.outgoing.len() < FULL;
        for (fd, capture) in fds[2..].iter_mut().zip(&command.captures) {
            *fd = capture.pollfd(reading);
        }
        let due = command.captures.iter().filter_map(Capture::due).min();
        let now = sys::now();
        let patience = due.map_or(LOOK, |due| due.saturating_sub(now)).min(LOOK);
        self.wait(&mut fds, Some(patience))?;
        let now = sys::now();
        let [signals, feed, outputs @ ..] = fds.map(|fd| fd.revents);
        for (capture, _) in command.captures.iter_mut().zip(outputs).filter(|(_, events)| *events != 0) {
            capture.read(now);
        }
        if signals != 0 {
            let received = self.signals.read();
            command.reap();
            if received.end > 0 && command.status.is_none() {
                command.terminate();
            }
        }
        while let Some(word) = self.next()? {
            command.obey(word, &mut self.outgoing);
        }
        if feed != 0 {
            command.feed(&mut self.outgoing);
        }
        for capture in &mut command.captures {
            capture.send_if_due(now, &mut self.outgoing);
        }
        if command.cause.is_none() && command.status.is_none() && command.look_at <= now {
            command.look_at = now + LOOK;
            command.cause = bounds::exceeded();
            if command.cause.is_some() {
                everybody(libc::SIGKILL);
            }
        }
        Ok(())
    }

    /// The command is over: ends what it has left behind, and sends what is left of its output.
    fn sweep(&mut self, command: &mut Command) -> Result<(), Unleashed> {
        if command.cause.is_none() {
            command.cause = bounds::exceeded();
        }
        let give_up = sys::now() + REAP_WITHIN;
        command.feed = None;
        while sys::has_children() && sys::now() < give_up {
            everybody(libc::SIGKILL);
            let mut fds = [libc::pollfd { fd: self.signals.raw_fd(), events: libc::POLLIN, revents: 0 }];
            self.wait(&mut fds, Some(LOOK))?;
            self.signals.read();
            command.reap();
        }
        for capture in &mut command.captures {
            capture.close_command_end();
            while !capture.at_end() {
                let now = sys::now();
                capture.read(now);
                capture.send_if_due(now, &mut self.outgoing);
                while self.outgoing.len() >= FULL {
                    self.wait(&mut [], None)?;
                }
            }
        }
        for (capture, word) in command.captures.drain(..).zip([FromInit::Stdout, FromInit::Stderr]) {
            let (_, rest) = capture.finish();
            if !rest.is_empty() {
                word(rest).put(&mut self.outgoing);
            }
        }
        Ok(())
    }

    /// Waits for something to happen to these, or on the leash, for as long as that can be believed in.
    fn wait(&mut self, fds: &mut [libc::pollfd], patience: Option<Duration>) -> Result<(), Unleashed> {
        let alive_until = self.heard + SILENCE;
        let left = alive_until.checked_sub(sys::now()).ok_or(Unleashed)?;
        let out = if self.outgoing.is_empty() { -1 } else { self.output.as_raw_fd() };
        let mut all = vec![
            libc::pollfd { fd: self.input.as_raw_fd(), events: libc::POLLIN, revents: 0 },
            libc::pollfd { fd: out, events: libc::POLLOUT, revents: 0 },
        ];
        all.extend_from_slice(fds);
        sys::poll(&mut all, Some(patience.unwrap_or(left).min(left))).map_err(|_| Unleashed)?;
        if all[0].revents != 0 {
            match sys::read_some(self.input.as_fd(), &mut self.incoming, READ) {
                Ok(0) => return Err(Unleashed),
                Ok(_) => self.heard = sys::now(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return Err(Unleashed),
            }
        }
        if all[1].revents != 0 {
            match sys::write_some(self.output.as_fd(), &self.outgoing) {
                Ok(written) => drop(self.outgoing.drain(..written)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return Err(Unleashed),
            }
        }
        fds.copy_from_slice(&all[2..]);
        Ok(())
    }
}

impl Command {
    fn obey(&mut self, word: ToInit, out: &mut Vec<u8>) {
        match word {
            ToInit::Input(bytes) => match &mut self.feed {
                Some(feed) => {
                    feed.bytes.extend(bytes);
                    self.feed(out);
                }
                // Nobody reads it, and who sends it shall not wait for that.
                None => FromInit::Taken(bytes.len() as u32).put(out),
            },
            ToInit::InputEnds => {
                self.feed.iter_mut().for_each(|feed| feed.ends = true);
                self.feed(out);
            }
            ToInit::Terminate => self.terminate(),
            ToInit::Pause => everybody(libc::SIGSTOP),
            ToInit::Resume => everybody(libc::SIGCONT),
            ToInit::Begin(_) | ToInit::Beat => {}
        }
    }

    fn terminate(&self) {
        if self.status.is_none() {
            sys::kill_group(self.pid, libc::SIGTERM);
            // It may have stopped itself, or have been stopped.
            everybody(libc::SIGCONT);
        }
    }

    /// Writes what the command takes of its input.
    fn feed(&mut self, out: &mut Vec<u8>) {
        let Some(feed) = &mut self.feed else { return };
        let before = feed.bytes.len();
        let is_over = feed.write();
        let taken = if is_over { before } else { before - feed.bytes.len() };
        if taken > 0 {
            FromInit::Taken(taken as u32).put(out);
        }
        if is_over {
            self.feed = None;
        }
    }

    /// Waits for all that have ended: process 1 is the parent of every orphan.
    fn reap(&mut self) {
        while let Wait::Reaped(ended) = sys::try_wait(None) {
            self.usage.user_us += ended.user.as_micros() as u64;
            self.usage.system_us += ended.system.as_micros() as u64;
            self.usage.peak_rss_bytes = self.usage.peak_rss_bytes.max(ended.max_rss_bytes);
            if ended.pid == self.pid {
                self.status = Some(ended.status);
            }
        }
    }

    fn conclude(self) -> Ended {
        let status = self.status.unwrap_or_default();
        let own = || match libc::WIFSIGNALED(status) {
            true => Exit::Signal { signal: libc::WTERMSIG(status) },
            false => Exit::Code { code: libc::WEXITSTATUS(status) },
        };
        Ended { exit: self.cause.unwrap_or_else(own), usage: self.usage }
    }
}

impl Feed {
    fn pollfd(&self) -> libc::pollfd {
        // Without anything to write only the end of its reader is news.
        let events = if self.bytes.is_empty() { 0 } else { libc::POLLOUT };
        libc::pollfd { fd: self.writer.as_raw_fd(), events, revents: 0 }
    }

    /// Returns whether it is over: all is written, or nobody reads it.
    fn write(&mut self) -> bool {
        while !self.bytes.is_empty() {
            match sys::write_some(self.writer.as_fd(), &self.bytes) {
                Ok(written) => drop(self.bytes.drain(..written)),
                Err(error) => return error.kind() != io::ErrorKind::WouldBlock,
            }
        }
        self.ends
    }
}

/// What a runner would be asked for the same command.
fn request(begin: &Begin) -> Start {
    Start {
        tid: Tid::from_u64(NOBODY).expect("it has as many digits as an id"),
        attempt: 1,
        name: String::new(),
        program: Program::Command(begin.argv.clone()),
        env: begin.env.clone(),
        cwd: None,
        has_stdin: begin.has_input,
        timeout: None,
        limits: Limits::default(),
        grace: Duration::ZERO,
        overtime: Duration::ZERO,
        sandbox: None,
    }
}

/// Signals all processes of the container but this one.
fn everybody(signal: libc::c_int) {
    // Process 1 is spared by the kernel.
    let _ = sys::signal_to(-1, signal);
}

/// How soon this process, and those that it starts from now on, are ended for want of memory.
fn stand_in_line(place: &str) {
    // Where it is refused the kernel chooses for itself.
    let _ = std::fs::write("/proc/self/oom_score_adj", place);
}
