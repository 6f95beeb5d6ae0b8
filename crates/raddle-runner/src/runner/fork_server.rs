//! The fork server: a process that forks the processes of functions. The runner makes it before it
//! has received any task.
//!
//! A runner is reused, and its memory may hold data of earlier tasks. Therefore functions are not
//! forked from the runner, but from a process that the runner forked at its own start and that has
//! only waited since. Its forks are as clean as new processes and much cheaper: nothing is loaded,
//! linked or initialised again.
//!
//! Its forks are its *siblings* (`CLONE_PARENT`): the runner waits for them and adopts their
//! orphans, as with any command. They and the fork server are clone children (their exit signal is
//! SIGURG, not SIGCHLD), which a plain wait(2) does not see. So the fork server does not disturb a
//! runner that waits until it has no children left.

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
    function::{self, FunctionCall},
    print_error,
    program::{PreparedAttempt, inherited_environment},
};
use crate::{
    message::{ExecRequest, ExecTarget},
    sys, title,
};

/// Exit signal of the fork server and its forks.
pub(super) const EXIT_SIGNAL: c_int = libc::SIGURG;
/// Maximum wait for a reply. A fork server that takes longer was stopped from outside.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);
const TITLE: &str = "raddle-fork-srv";
/// Descriptor of its socket in the fork server. In the forks, the reply channel takes this number.
const SOCKET: c_int = 3;
/// Maximum length of a reply: a pid, or an errno.
const MAX_REPLY: usize = 64;

/// A fork server. It is killed on drop.
pub(super) struct ForkServer {
    pid: u32,
    socket: OwnedFd,
    /// Whether the fork server failed. It cannot be replaced, because the runner has received tasks
    /// since.
    is_broken: Cell<bool>,
}

impl ForkServer {
    /// Forks the fork server of this runner, which must have one thread and must not have received
    /// a task.
    pub(super) fn spawn(call: FunctionCall) -> io::Result<Self> {
        let (ours, theirs) = sys::seqpacket_pair()?;
        let runner = getpid();
        // SAFETY: a runner has one thread.
        let pid = unsafe {
            sys::fork(EXIT_SIGNAL, || {
                serve(&theirs, call, runner).map_or(FAULT, |()| 0)
            })
        }?;
        Ok(Self {
            pid,
            socket: ours,
            is_broken: Cell::new(false),
        })
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether the fork server was killed, or does not reply.
    pub(super) fn is_broken(&self) -> bool {
        self.is_broken.get()
    }

    /// Forks a process that calls the function of this request and exits. Returns its pid.
    pub(super) fn fork_function(
        &self,
        plan: &ChildPlan<'_>,
        request: &ExecRequest,
    ) -> Result<u32, (ChildStep, io::Error)> {
        self.request_fork(plan, request)
            .map_err(|error| (ChildStep::Clone, error))
    }

    /// Requests a fork. Until the reply arrives, the fork server counts as broken.
    fn request_fork(&self, plan: &ChildPlan<'_>, request: &ExecRequest) -> io::Result<u32> {
        // The request is in a memfd that the fork server passes on without reading it.
        let memory =
            sys::create_memfd(c"raddle-request", &frame::encode(&(request, plan.rlimits)))?;
        let passed = [memory.as_fd(), plan.stdin]
            .into_iter()
            .chain(plan.outputs.iter().copied())
            .chain(plan.cgroup);
        self.is_broken.set(true);
        // A process that stopped the runner may have stopped the fork server too, and only the
        // runner was continued.
        sys::kill(self.pid, Signal::CONT);
        sys::send_with(self.socket.as_fd(), b"F", &passed.collect::<Vec<_>>())?;
        let mut fds = [libc::pollfd {
            fd: self.socket.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        }];
        sys::poll(&mut fds, Some(REPLY_TIMEOUT))?;
        if fds[0].revents == 0 {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the fork server does not reply",
            ));
        }
        let mut reply = Decoder::new(MAX_REPLY);
        sys::read_some(self.socket.as_fd(), reply.buffer())?;
        let Ok(Some(forked)) = reply.next::<Result<u32, i32>>() else {
            return Err(io::Error::other("the fork server is gone"));
        };
        self.is_broken.set(false);
        forked.map_err(io::Error::from_raw_os_error)
    }
}

impl Drop for ForkServer {
    /// Reaps the fork server: nothing else would reap it once it is an orphan.
    fn drop(&mut self) {
        sys::kill(self.pid, Signal::KILL);
        sys::wait_for_end(self.pid);
    }
}

/// Main loop of the fork server. Returns when its runner is gone.
fn serve(socket: &OwnedFd, call: FunctionCall, runner: Pid) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if getppid() != Some(runner) {
        return Ok(());
    }
    sys::dup_onto(socket.as_fd(), SOCKET)?;
    // The closed descriptors belong to the runner, none of whose code runs here.
    sys::close_from(SOCKET + 1);
    sys::close_on_exec();
    // SAFETY: the socket was moved there above, and stays open.
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
                process::exit(child_main(passed, call, runner))
            })
        };
        let reply = forked.map_err(|error| error.raw_os_error().unwrap_or(libc::EAGAIN));
        sys::send_whole(socket, &frame::encode(&reply));
    }
}

/// Main function of a forked process. Returns the exit code.
fn child_main(passed: Vec<OwnedFd>, call: FunctionCall, runner: Pid) -> i32 {
    run_function(passed, call, runner).unwrap_or_else(|error| {
        print_error(format_args!(
            "the process of a function could not be set up: {error}"
        ));
        FAULT
    })
}

fn run_function(passed: Vec<OwnedFd>, call: FunctionCall, runner: Pid) -> io::Result<i32> {
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
    // Needed until the process exits.
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
    // `call` closes all descriptors except the standard ones and the reply channel.
    std::mem::forget(descriptors);
    Ok(function::call(
        envp,
        call,
        name,
        request.stdin.unwrap_or_default(),
    ))
}
