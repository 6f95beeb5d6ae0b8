//! The process between the runner and the command: it makes the sandbox from inside, and is process 1 there.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd},
    time::Duration,
};

use super::{
    super::{
        child::{self, Plan, Stack, Step},
        program::Executable,
    },
    Layer, Refused, filter, ids, landlock, root,
};
use crate::sys;

/// Everything of its own.
const NAMESPACES: libc::c_int = libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWCGROUP;
/// No system takes so long.
const PATIENCE: Duration = Duration::from_secs(10);

/// What the shim says first, once: that the command has begun, at which step of its start it failed, or which layer was refused.
const BEGUN: u8 = 0;
const STEP: u8 = 64;
/// Kind and error number, and what was tried.
const HEAD: usize = 5;
const LONGEST: usize = 200;

/// Tells the shim that its user has a name.
const GO: u8 = b'G';
/// The exit code of every shim. What its command's is, it has said before.
const SHIM: libc::c_int = 125;

/// The shim's ends of its pipes.
struct Ends {
    /// What it says to the runner.
    says: OwnedFd,
    /// What it hears from it: its user has a name; or the end of file, when the runner is gone.
    leash: OwnedFd,
}

/// How the command ended, as the shim saw it. A shim that was killed has seen nothing.
pub(in super::super) struct Witness(OwnedFd);

/// Why a command did not begin.
pub(in super::super) enum NotBegun {
    Refused(Refused),
    Step(Step, io::Error),
}

impl Witness {
    /// The command's wait status.
    pub(in super::super) fn status(&self) -> Option<libc::c_int> {
        let mut buf = Vec::new();
        sys::read_some(self.0.as_fd(), &mut buf, 4).ok()?;
        buf.try_into().ok().map(libc::c_int::from_le_bytes)
    }
}

/// Starts a command in a sandbox. The process that is returned is the shim, whose group the command is in.
pub(in super::super) fn spawn(
    stack: &mut Stack,
    plan: &Plan<'_>,
    executable: &Executable,
) -> Result<(u32, Witness), NotBegun> {
    let starved = |error| NotBegun::Step(Step::Clone, error);
    let (ours, theirs) = pipe().map_err(starved)?;
    let (leash, held) = pipe().map_err(starved)?;
    // Asked before: in a user namespace nobody is root.
    let is_root = sys::is_root();
    ids::hand_over(plan.outputs.iter().copied().chain([plan.stdin]));
    // SAFETY: a plain fork but for the namespaces: a runner has one thread, so the child is a whole process. It never returns from here.
    let pid = unsafe { libc::syscall(libc::SYS_clone, NAMESPACES | libc::SIGCHLD, 0, 0, 0, 0) };
    match sys::check(pid as i32) {
        Ok(0) => {
            drop(held);
            be_the_shim(stack, plan, executable, &Ends { says: theirs, leash }, is_root)
        }
        Ok(pid) => {
            drop(theirs);
            let pid = pid as u32;
            let named = ids::name(pid).map_err(Layer::Ids.refused("its names")).map_err(NotBegun::Refused);
            let begun = named.and_then(|()| {
                let _ = sys::write_some(held.as_fd(), &[GO]);
                listen(&ours)
            });
            match begun {
                Ok(()) => sys::set_nonblocking(ours.as_fd()).map(|()| (pid, Witness(ours))).map_err(starved),
                Err(not_begun) => {
                    sys::kill(pid, libc::SIGKILL);
                    // SAFETY: a child that is dead, or about to be: its parent may wait for it.
                    unsafe { libc::waitpid(pid as i32, std::ptr::null_mut(), 0) };
                    Err(not_begun)
                }
            }
        }
        Err(error) if matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOSPC | libc::EINVAL)) => {
            Err(NotBegun::Refused(Layer::Namespaces.refused("clone")(error)))
        }
        Err(error) => Err(starved(error)),
    }
}

/// What the shim says.
fn listen(pipe: &OwnedFd) -> Result<(), NotBegun> {
    let mut fds = [libc::pollfd { fd: pipe.as_raw_fd(), events: libc::POLLIN, revents: 0 }];
    let mut said = Vec::new();
    let heard = sys::poll(&mut fds, Some(PATIENCE))
        .and_then(|()| if fds[0].revents == 0 { Err(io::ErrorKind::TimedOut.into()) } else { Ok(()) })
        .and_then(|()| sys::read_some(pipe.as_fd(), &mut said, HEAD));
    if let Err(error) = heard {
        return Err(NotBegun::Step(Step::Setup, error));
    }
    let Ok([kind, a, b, c, d]) = <[u8; HEAD]>::try_from(said) else {
        return Err(NotBegun::Step(Step::Setup, io::Error::other("the shim ended before it had begun")));
    };
    let error = io::Error::from_raw_os_error(i32::from_le_bytes([a, b, c, d]));
    if kind == BEGUN {
        return Ok(());
    }
    if let Some(layer) = Layer::ALL.into_iter().find(|layer| *layer as u8 == kind) {
        let mut what = Vec::new();
        let _ = sys::read_some(pipe.as_fd(), &mut what, LONGEST);
        let what = String::from_utf8_lossy(&what).into_owned();
        return Err(NotBegun::Refused(Refused { layer, what, error }));
    }
    let step = [Step::Clone, Step::Setup, Step::Chdir, Step::Exec].into_iter().find(|step| STEP + *step as u8 == kind);
    Err(NotBegun::Step(step.unwrap_or(Step::Setup), error))
}

fn say(pipe: &OwnedFd, kind: u8, error: &io::Error, what: &str) {
    let mut message = vec![kind];
    message.extend(error.raw_os_error().unwrap_or(0).to_le_bytes());
    message.extend(what.bytes().take(LONGEST));
    let _ = sys::write_some(pipe.as_fd(), &message);
}

/// The shim's part.
fn be_the_shim(stack: &mut Stack, plan: &Plan<'_>, executable: &Executable, ends: &Ends, is_root: bool) -> ! {
    let (pipe, none) = (&ends.says, io::Error::from_raw_os_error(0));
    if let Err(Refused { layer, what, error }) = build(plan, ends, is_root) {
        say(pipe, layer as u8, &error, &what);
        leave();
    }
    // The shim has seen to the rest: the group, the control group, and the folder.
    let plan = Plan { leads: false, cgroup: None, cwd: None, ..*plan };
    let command = match child::spawn(stack, &plan, executable) {
        Ok(command) => command,
        Err((step, error)) => {
            say(pipe, STEP + step as u8, &error, "");
            leave();
        }
    };
    say(pipe, BEGUN, &none, "");
    let _ = sys::write_some(pipe.as_fd(), &wait_for(command).to_le_bytes());
    leave()
}

/// Makes all layers, each of which takes away what it takes to make those before it.
fn build(plan: &Plan<'_>, ends: &Ends, is_root: bool) -> Result<(), Refused> {
    let setup = Layer::Privileges;
    // SAFETY: plain integers. The group that the command will be in.
    unsafe { libc::setpgid(0, 0) };
    end_with_the_runner();
    let mut go = Vec::new();
    if !matches!(sys::read_some(ends.leash.as_fd(), &mut go, 1), Ok(1)) {
        leave();
    }
    if let Some(procs) = plan.cgroup {
        // SAFETY: an open descriptor, and one byte.
        let joined = unsafe { libc::write(procs, c"0".as_ptr().cast(), 1) };
        sys::check(joined as i32).map_err(setup.refused("join its control group"))?;
    }
    close_all_but(plan, ends);
    // SAFETY: plain integers. What the shim has open or in memory is nothing for the command, which is the same user.
    unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) };
    ids::become_it(is_root).map_err(Layer::Ids.refused("become it"))?;
    // Whoever changes its user loses what it had asked for.
    end_with_the_runner();
    let mut leash = [libc::pollfd { fd: ends.leash.as_raw_fd(), events: 0, revents: 0 }];
    if sys::poll(&mut leash, Some(Duration::ZERO)).is_err() || leash[0].revents != 0 {
        leave();
    }
    root::enter()?;
    // SAFETY: a name and its length.
    unsafe { libc::sethostname(c"sandbox".as_ptr(), 7) };
    ids::give_up_privileges().map_err(setup.refused("capabilities"))?;
    landlock::restrict().map_err(Layer::Landlock.refused("its rules"))?;
    filter::install().map_err(Layer::Filter.refused("seccomp"))
}

/// Asks for SIGKILL at the runner's death. Whether that has come before is told by the leash: a shim does not see its parent.
fn end_with_the_runner() {
    // SAFETY: plain integers.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0) };
}

/// Lets go of what belongs to the runner: its socket, its fence, its signals, and the worker's standard error.
fn close_all_but(plan: &Plan<'_>, ends: &Ends) {
    let own = [plan.stdin, ends.says.as_raw_fd(), ends.leash.as_raw_fd()];
    let mut kept: Vec<RawFd> = plan.outputs.iter().copied().chain(own).collect();
    kept.sort_unstable();
    let mut from = 0;
    for fd in kept.into_iter().chain([RawFd::MAX]) {
        if fd > from {
            // SAFETY: nothing of this process uses them any more.
            unsafe { libc::syscall(libc::SYS_close_range, from, fd - 1, 0) };
        }
        from = fd.saturating_add(1);
    }
}

/// Waits for all that ends in the sandbox, until the command does.
fn wait_for(command: u32) -> libc::c_int {
    loop {
        let mut status = 0;
        // SAFETY: the pointer is to a local.
        let ended = unsafe { libc::wait(&raw mut status) };
        if ended == command as i32 {
            return status;
        }
        if ended < 0 && io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            leave();
        }
    }
}

/// Ends, and with it all that is in the sandbox.
fn leave() -> ! {
    // SAFETY: ends the process without running what the runner has registered for its own end.
    unsafe { libc::_exit(SHIM) }
}

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds = [0; 2];
    // SAFETY: room for two descriptors, which nobody else owns.
    unsafe {
        sys::check(libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC))?;
        Ok((OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])))
    }
}
