//! The fork server: the process that functions' processes are forked from, as it was before its runner had heard of any task.
//!
//! A runner is used again and again, and what it has passed on may still be in its memory. So a function is not given a fork of the runner,
//! but of a process that the runner has made at its own beginning and that has done nothing since but wait: what it forks is as pristine as
//! a new process, and costs a fraction of one, for nothing is loaded, linked or initialised again.
//!
//! What it forks are its *siblings* (`CLONE_PARENT`): the runner waits for them, and is given what they leave behind, as with any
//! command. They, and the cradle itself, are what the kernel calls clone children: their end is told by a signal of its own, and who waits for
//! any child without asking for such does not see them. So the cradle is never in the way of a runner that waits until nobody is left.

use std::{
    cell::Cell,
    ffi::c_int,
    fs::File,
    io::{self, Read},
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    process,
    time::Duration,
};

use raddle_model::frame::{self, Decoder};
use rustix::process::{Pid, Signal, getpid, getppid, set_parent_process_death_signal};

use super::{
    FAULT,
    child::{ChildPlan, ChildStep, Resource, set_up},
    complain,
    function::{self, FunctionCall},
    program::{PreparedAttempt, inherited_environment},
};
use crate::{
    message::{ExecRequest, ExecTarget},
    sys, title,
};

/// Tells of the end of what a cradle has forked.
pub(super) const ENDED: c_int = libc::SIGURG;
/// One that does not answer was stopped by somebody.
const PATIENCE: Duration = Duration::from_secs(5);
const TITLE: &str = "raddle-cradle";
/// The descriptor of its socket. Those of what it forks come after it, and take its place.
const SOCKET: c_int = 3;
/// The longest answer: a pid, or the number of an error.
const ANSWER: usize = 64;

/// A cradle. Dropped, it ends.
pub(super) struct ForkServer {
    pid: u32,
    socket: OwnedFd,
    /// It is of no use any more, and there can be no other: the runner has heard of tasks.
    is_broken: Cell<bool>,
}

impl ForkServer {
    /// Forks the cradle of this runner, which must have one thread and must not have heard of a task.
    pub(super) fn make(call: FunctionCall) -> io::Result<Self> {
        let (ours, theirs) = sys::seqpacket_pair()?;
        let runner = getpid();
        // SAFETY: a runner has one thread.
        let pid =
            unsafe { sys::fork(ENDED, || serve(&theirs, call, runner).map_or(FAULT, |()| 0)) }?;
        Ok(Self {
            pid,
            socket: ours,
            is_broken: Cell::new(false),
        })
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether it was killed, or does not answer.
    pub(super) fn is_broken(&self) -> bool {
        self.is_broken.get()
    }

    /// Forks a process that calls the function of this request and exits; returns its pid.
    pub(super) fn bear(
        &self,
        plan: &ChildPlan<'_>,
        request: &ExecRequest,
    ) -> Result<u32, (ChildStep, io::Error)> {
        self.ask(plan, request)
            .map_err(|error| (ChildStep::Clone, error))
    }

    /// Asks for a process. As long as it has not answered it is of no use.
    fn ask(&self, plan: &ChildPlan<'_>, request: &ExecRequest) -> io::Result<u32> {
        // In memory that the cradle passes on, and does not look at.
        let memory = sys::memory(c"raddle-request", &frame::encode(&(request, plan.rlimits)))?;
        let passed = [memory.as_fd(), plan.stdin]
            .into_iter()
            .chain(plan.outputs.iter().copied())
            .chain(plan.cgroup);
        self.is_broken.set(true);
        // Whoever has stopped its runner has stopped it, too, and only the runner is woken.
        sys::kill(self.pid, Signal::CONT);
        sys::send_with(self.socket.as_fd(), b"F", &passed.collect::<Vec<_>>())?;
        let mut fds = [libc::pollfd {
            fd: self.socket.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        }];
        sys::poll(&mut fds, Some(PATIENCE))?;
        if fds[0].revents == 0 {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the process that forks functions does not answer",
            ));
        }
        let mut answer = Decoder::new(ANSWER);
        sys::read_some(self.socket.as_fd(), answer.buffer())?;
        let Ok(Some(forked)) = answer.next::<Result<u32, i32>>() else {
            return Err(io::Error::other("the process that forks functions is gone"));
        };
        self.is_broken.set(false);
        forked.map_err(io::Error::from_raw_os_error)
    }
}

impl Drop for ForkServer {
    /// It is waited for here: nobody else would, once it is an orphan.
    fn drop(&mut self) {
        sys::kill(self.pid, Signal::KILL);
        sys::wait_for_end(self.pid);
    }
}

/// The cradle's part. Returns when its runner is gone.
fn serve(socket: &OwnedFd, call: FunctionCall, runner: Pid) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if getppid() != Some(runner) {
        return Ok(());
    }
    sys::dup_onto(socket.as_fd(), SOCKET)?;
    // What is closed belongs to the runner's part of the program, of which nothing runs here.
    sys::close_from(SOCKET + 1);
    sys::close_on_exec();
    // SAFETY: it was put there above, and stays.
    let socket = unsafe { BorrowedFd::borrow_raw(SOCKET) };
    title::set(TITLE);
    loop {
        let (request, passed) = sys::receive_with(socket, 1)?;
        if request.is_empty() {
            return Ok(());
        }
        // SAFETY: there is one thread.
        let forked = unsafe {
            sys::fork(libc::CLONE_PARENT, || {
                process::exit(be_born(passed, call, runner))
            })
        };
        let answer = forked.map_err(|error| error.raw_os_error().unwrap_or(libc::EAGAIN));
        sys::send_whole(socket, &frame::encode(&answer));
    }
}

/// The part of the process that was forked: becomes what the request says. Returns the exit code.
fn be_born(passed: Vec<OwnedFd>, call: FunctionCall, runner: Pid) -> i32 {
    run(passed, call, runner).unwrap_or_else(|error| {
        complain(format_args!(
            "the process of a function could not be set up: {error}"
        ));
        FAULT
    })
}

fn run(passed: Vec<OwnedFd>, call: FunctionCall, runner: Pid) -> io::Result<i32> {
    let mut passed = passed.into_iter();
    let memory = passed.next().ok_or(io::ErrorKind::UnexpectedEof)?;
    let mut decoder = Decoder::new(usize::MAX);
    File::from(memory).read_to_end(decoder.buffer())?;
    let read = decoder
        .next::<(ExecRequest, Vec<(Resource, u64)>)>()
        .map_err(io::Error::other)?;
    let (request, rlimits) = read.ok_or(io::ErrorKind::UnexpectedEof)?;
    drop(decoder);
    let descriptors: Vec<OwnedFd> = passed.collect();
    let [stdin, stdout, stderr, reply, cgroup @ ..] = &descriptors[..] else {
        return Err(io::ErrorKind::UnexpectedEof.into());
    };
    let prepared = PreparedAttempt::new(&request, &inherited_environment());
    let prepared = prepared.map_err(|exit| io::Error::other(exit.to_string()))?;
    // They are needed until the process ends.
    let prepared: &'static PreparedAttempt = Box::leak(Box::new(prepared));
    let envp: &'static [_] = prepared.envp().leak();
    let plan = ChildPlan {
        envp,
        cwd: prepared.cwd.as_deref(),
        stdin: stdin.as_fd(),
        outputs: &[stdout.as_fd(), stderr.as_fd(), reply.as_fd()],
        rlimits: &rlimits,
        cgroup: cgroup.first().map(AsFd::as_fd),
        leads: true,
    };
    set_up(&plan, runner).map_err(|(_, error)| error)?;
    let ExecTarget::Function(name) = &request.program else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    // `call` closes all descriptors but the standard ones and that of the reply.
    std::mem::forget(descriptors);
    Ok(function::call(
        envp,
        call,
        name,
        request.stdin.unwrap_or_default(),
    ))
}
