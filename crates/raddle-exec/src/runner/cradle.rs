//! The process that functions' processes are forked from: as it was before its runner had heard of any task.
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
    ffi::{CStr, c_char, c_int},
    fs::File,
    io::{self, Write},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
        unix::fs::FileExt,
    },
    process, ptr,
    time::Duration,
};

use super::{
    FAULT,
    child::{Plan, Resource, Step, set_up},
    function::{self, Call},
};
use crate::{sys, title};

/// Tells of the end of what a cradle has forked.
pub(super) const ENDED: c_int = libc::SIGURG;
/// One that does not answer was stopped by somebody.
const PATIENCE: Duration = Duration::from_secs(5);
const TITLE: &str = "raddle-cradle";
/// The descriptor of its socket. Those of what it forks come after it, and take its place.
const SOCKET: c_int = 3;

/// A cradle. Dropped, it ends.
pub(super) struct Cradle {
    pid: u32,
    socket: OwnedFd,
    /// It is of no use any more, and there can be no other: the runner has heard of tasks.
    is_broken: Cell<bool>,
}

impl Cradle {
    /// Forks the cradle of this runner, which must have one thread and must not have heard of a task.
    pub(super) fn make(call: Call) -> io::Result<Self> {
        let (ours, theirs) = sys::seqpacket_pair()?;
        // SAFETY: getpid cannot fail.
        let runner = unsafe { libc::getpid() };
        // SAFETY: a runner has one thread, so the child is a whole process. It never returns from here.
        match unsafe { sys::fork_with(ENDED) }? {
            None => {
                let code = serve(&theirs, call, runner).map_or(FAULT, |()| 0);
                // SAFETY: ends the process without running what its ancestors have registered for their own end.
                unsafe { libc::_exit(code) }
            }
            Some(pid) => Ok(Self { pid, socket: ours, is_broken: Cell::new(false) }),
        }
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether it was killed, or does not answer.
    pub(super) fn is_broken(&self) -> bool {
        self.is_broken.get()
    }

    /// Forks a process that calls the function of this name and exits; returns its pid.
    pub(super) fn bear(&self, plan: &Plan<'_>, name: &str, input: &[u8]) -> Result<u32, (Step, io::Error)> {
        self.ask(plan, name, input).map_err(|error| (Step::Clone, error))
    }

    /// Asks for a process. As long as it has not answered it is of no use.
    fn ask(&self, plan: &Plan<'_>, name: &str, input: &[u8]) -> io::Result<u32> {
        let charge = Charge::write(plan, name, input);
        let memory = sys::memory(c"raddle-charge", &charge)?;
        let fds = [plan.stdin].into_iter().chain(plan.outputs.iter().copied()).chain(plan.cgroup);
        // SAFETY: the plan's descriptors are open for as long as it is borrowed.
        let fds = fds.map(|fd| unsafe { BorrowedFd::borrow_raw(fd) });
        let passed: Vec<BorrowedFd<'_>> = [memory.as_fd()].into_iter().chain(fds).collect();
        let outputs = plan.outputs.len() as u64;
        let request = [charge.len() as u64, outputs].map(u64::to_le_bytes);
        self.is_broken.set(true);
        // Whoever has stopped its runner has stopped it, too, and only the runner is woken.
        sys::kill(self.pid, libc::SIGCONT);
        sys::send_with(self.socket.as_fd(), request.as_flattened(), &passed)?;
        let mut fds = [libc::pollfd { fd: self.socket.as_raw_fd(), events: libc::POLLIN, revents: 0 }];
        sys::poll(&mut fds, Some(PATIENCE))?;
        if fds[0].revents == 0 {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the process that forks functions does not answer"));
        }
        let mut answer = Vec::new();
        sys::read_some(self.socket.as_fd(), &mut answer, size_of::<i32>())?;
        let Ok(answer) = answer.try_into().map(i32::from_le_bytes) else {
            return Err(io::Error::other("the process that forks functions is gone"));
        };
        self.is_broken.set(false);
        if answer > 0 { Ok(answer as u32) } else { Err(io::Error::from_raw_os_error(-answer)) }
    }
}

impl Drop for Cradle {
    /// It is waited for here: nobody else would, once it is an orphan.
    fn drop(&mut self) {
        sys::kill(self.pid, libc::SIGKILL);
        // SAFETY: our own child, whose status nobody wants.
        unsafe { libc::waitpid(self.pid as libc::pid_t, ptr::null_mut(), libc::__WALL) };
    }
}

/// The cradle's part. Returns when its runner is gone.
fn serve(socket: &OwnedFd, call: Call, runner: libc::pid_t) -> io::Result<()> {
    // SAFETY: plain integers. What is closed belongs to the runner's part of the program, of which nothing runs here.
    let socket = unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
        if libc::getppid() != runner {
            return Ok(());
        }
        sys::dup_onto(socket.as_fd(), SOCKET)?;
        libc::syscall(libc::SYS_close_range, SOCKET + 1, u32::MAX, 0);
        sys::close_on_exec();
        BorrowedFd::borrow_raw(SOCKET)
    };
    title::set(TITLE);
    loop {
        let (request, passed) = sys::receive_with(socket, 2 * size_of::<u64>())?;
        let ([length, outputs], []) = request.as_chunks() else { return Ok(()) };
        let [length, outputs] = [length, outputs].map(|number| u64::from_le_bytes(*number) as usize);
        // SAFETY: there is one thread, so the child is a whole process. It never returns from here.
        let answer = match unsafe { sys::fork_with(libc::CLONE_PARENT) } {
            Ok(None) => process::exit(be_born(&passed, length, outputs, call, runner)),
            Ok(Some(pid)) => pid as i32,
            Err(error) => -error.raw_os_error().unwrap_or(libc::EAGAIN),
        };
        drop(passed);
        sys::send_whole(socket, &answer.to_le_bytes());
    }
}

/// The part of the process that was forked: becomes what its charge says. Returns the exit code.
fn be_born(passed: &[OwnedFd], length: usize, outputs: usize, call: Call, runner: libc::pid_t) -> i32 {
    let [memory, stdin, rest @ ..] = passed else { return FAULT };
    let mut bytes = vec![0; length];
    let read = memory.try_clone().map(File::from).and_then(|file| file.read_exact_at(&mut bytes, 0));
    let (Ok(()), Some((outputs, rest))) = (read, rest.split_at_checked(outputs)) else { return FAULT };
    // It is needed until the process ends.
    let Some(charge) = Charge::read(bytes.leak()) else { return FAULT };
    let outputs: Vec<RawFd> = outputs.iter().map(AsRawFd::as_raw_fd).collect();
    let plan = Plan {
        envp: &charge.envp,
        cwd: charge.cwd,
        stdin: stdin.as_raw_fd(),
        outputs: &outputs,
        rlimits: &charge.rlimits,
        cgroup: rest.first().map(AsRawFd::as_raw_fd),
        leads: true,
    };
    // SAFETY: this is the child.
    match unsafe { set_up(&plan, runner) } {
        Ok(()) => function::call(&plan, call, charge.name, charge.input.to_vec()),
        Err(step) => {
            let error = io::Error::last_os_error();
            let _ = writeln!(io::stderr(), "raddle: the process could not be set up ({step:?}): {error}");
            FAULT
        }
    }
}

/// What a process is told that is to call a function: in memory that the cradle passes on, and does not look at.
struct Charge {
    name: &'static str,
    input: &'static [u8],
    cwd: Option<&'static CStr>,
    /// Ends with a null pointer.
    envp: Vec<*const c_char>,
    rlimits: Vec<(Resource, u64)>,
}

impl Charge {
    fn write(plan: &Plan<'_>, name: &str, input: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(4096 + input.len());
        let mut put = |bytes: &[u8]| {
            out.extend((bytes.len() as u64).to_le_bytes());
            out.extend_from_slice(bytes);
            // So that it can be used as a C string where it lies.
            out.push(0);
        };
        put(name.as_bytes());
        put(input);
        put(plan.cwd.map_or(b"", CStr::to_bytes));
        let rlimits = plan.rlimits.iter().flat_map(|(resource, value)| [*resource as u64, *value]);
        put(&rlimits.flat_map(u64::to_le_bytes).collect::<Vec<u8>>());
        for variable in plan.envp.iter().filter(|variable| !variable.is_null()) {
            // SAFETY: the plan's variables are C strings that live as long as it is borrowed.
            put(unsafe { CStr::from_ptr(*variable) }.to_bytes());
        }
        out
    }

    fn read(mut bytes: &'static [u8]) -> Option<Self> {
        let mut next = || {
            let (length, rest) = bytes.split_first_chunk()?;
            let (taken, rest) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
            bytes = rest.strip_prefix(b"\0")?;
            Some(taken)
        };
        let (name, input, cwd, rlimits) = (next()?, next()?, next()?, next()?);
        let mut envp: Vec<*const c_char> = std::iter::from_fn(next).map(|variable| variable.as_ptr().cast()).collect();
        envp.push(ptr::null());
        let (numbers, []) = rlimits.as_chunks::<16>() else { return None };
        let number = |bytes: &[u8]| bytes.try_into().map(u64::from_le_bytes).ok();
        let rlimits = numbers.iter().map(|pair| Some((number(&pair[..8])? as Resource, number(&pair[8..])?)));
        // SAFETY: a zero follows each part.
        let cwd = (!cwd.is_empty()).then(|| unsafe { CStr::from_ptr(cwd.as_ptr().cast()) });
        Some(Self { name: std::str::from_utf8(name).ok()?, input, cwd, envp, rlimits: rlimits.collect::<Option<_>>()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_charge_arrives_as_it_was_given() {
        let env = [c"A=1", c"B="].map(CStr::as_ptr);
        let envp = [env[0], env[1], ptr::null()];
        let plan = Plan {
            envp: &envp,
            cwd: Some(c"/tmp"),
            stdin: 0,
            outputs: &[],
            rlimits: &[(libc::RLIMIT_NOFILE, 7), (libc::RLIMIT_DATA, u64::MAX)],
            cgroup: None,
            leads: true,
        };
        let bytes = Charge::write(&plan, "näme", b"in\0put");
        let charge = Charge::read(bytes.leak()).unwrap();
        assert_eq!((charge.name, charge.input, charge.cwd), ("näme", &b"in\0put"[..], Some(c"/tmp")));
        assert_eq!(charge.rlimits, plan.rlimits);
        assert_eq!(charge.envp.len(), 3);
        // SAFETY: the first two are C strings, as was just written.
        let read = [charge.envp[0], charge.envp[1]].map(|variable| unsafe { CStr::from_ptr(variable) });
        assert_eq!((read, charge.envp[2]), ([c"A=1", c"B="], ptr::null()));
        assert!(Charge::read(b"\x09\0\0\0\0\0\0\0short").is_none());
    }
}
