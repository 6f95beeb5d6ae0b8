//! Starting the command: a clone that shares our memory until it has become the command.
//!
//! This is what `posix_spawn` does inside; ours exists because the child must also ask for the signal that follows its
//! parent's death, take its limits on and join its cgroup, which `posix_spawn` cannot be told. Between clone and exec only
//! system calls happen: no allocation, no lock, no formatting. Everything they need is prepared in a [`ChildPlan`].

use std::{
    ffi::{CStr, c_char, c_int, c_void},
    io,
    os::fd::{AsRawFd, BorrowedFd},
    ptr,
};

use rustix::{
    io::{FdFlags, fcntl_setfd},
    process::{self, Pid, Rlimit, Signal},
};
use serde::{Deserialize, Serialize};

use super::program::Executable;
use crate::sys;

/// More than the child's few calls need; only the pages that are touched cost memory.
const STACK_SIZE: usize = 64 * 1024;

/// All that the child needs to become the attempt, whatever it runs.
#[derive(Clone, Copy)]
pub(crate) struct ChildPlan<'a> {
    /// Ends with a null pointer.
    pub(crate) envp: &'a [*const c_char],
    pub(crate) cwd: Option<&'a CStr>,
    /// What becomes descriptor 0.
    pub(crate) stdin: BorrowedFd<'a>,
    /// What become descriptors 1, 2 and, for a function, 3. None of them may be below 3.
    pub(crate) outputs: &'a [BorrowedFd<'a>],
    pub(crate) rlimits: &'a [(Resource, u64)],
    /// An open `cgroup.procs` to join.
    pub(crate) cgroup: Option<BorrowedFd<'a>>,
    /// Whether it leads a process group of its own.
    pub(crate) leads: bool,
}

/// What setrlimit(2) limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Resource {
    /// Open files.
    Nofile,
    /// Memory, but for what is mapped from files.
    Data,
    /// Processes of the user.
    Nproc,
    /// The size of a file.
    Fsize,
    /// The size of a core dump.
    Core,
}

/// The step at which the child gave up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ChildStep {
    /// There is no child.
    Clone,
    /// Its process group, descriptors, cgroup or limits.
    Setup,
    /// Its directory.
    Chdir,
    /// The program.
    Exec,
}

struct ChildReport<'a> {
    plan: &'a ChildPlan<'a>,
    executable: &'a Executable,
    argv: &'a [*const c_char],
    parent: Pid,
    failure: Option<(ChildStep, c_int)>,
}

impl From<Resource> for process::Resource {
    fn from(resource: Resource) -> Self {
        match resource {
            Resource::Nofile => Self::Nofile,
            Resource::Data => Self::Data,
            Resource::Nproc => Self::Nproc,
            Resource::Fsize => Self::Fsize,
            Resource::Core => Self::Core,
        }
    }
}

/// Starts the command and returns its pid, or the step that failed and why. Signals must be blocked, so that no handler of ours
/// can run in the child.
pub(crate) fn spawn(
    plan: &ChildPlan<'_>,
    executable: &Executable,
) -> Result<u32, (ChildStep, io::Error)> {
    let argv = executable.argv();
    let mut shared = ChildReport {
        plan,
        executable,
        argv: &argv,
        parent: process::getpid(),
        failure: None,
    };
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    let mut stack = Vec::<u128>::with_capacity(STACK_SIZE / size_of::<u128>());
    // Stacks grow down from here.
    let top = stack.spare_capacity_mut().as_mut_ptr_range().end.cast();
    // SAFETY: the stack is ours alone and aligned as any needs to be. CLONE_VFORK suspends this thread, the only one of the
    // process, until the child has exec'd or exited, so that the stack, `shared` and the plan outlive the child's use of them.
    let pid = unsafe {
        libc::clone(
            become_command,
            top,
            flags,
            ptr::from_mut(&mut shared).cast(),
        )
    };
    if pid < 0 {
        return Err((ChildStep::Clone, io::Error::last_os_error()));
    }
    // SAFETY: the child wrote through a pointer the compiler has lost sight of; a volatile read sees it.
    match unsafe { ptr::read_volatile(&raw const shared.failure) } {
        None => Ok(pid as u32),
        Some((step, errno)) => {
            sys::wait_for_end(pid as u32);
            Err((step, io::Error::from_raw_os_error(errno)))
        }
    }
}

extern "C" fn become_command(shared: *mut c_void) -> c_int {
    // SAFETY: `spawn` passes a `ChildReport` that it does not touch until this process has exec'd or exited.
    let shared = unsafe { &mut *shared.cast::<ChildReport<'_>>() };
    let (step, error) =
        set_up(shared.plan, shared.parent).map_or_else(|failed| failed, |()| exec(shared));
    shared.failure = Some((step, error.raw_os_error().unwrap_or(0)));
    sys::exit_at_once(127)
}

/// Returns only if it fails.
fn exec(shared: &ChildReport<'_>) -> (ChildStep, io::Error) {
    let (argv, envp) = (shared.argv.as_ptr(), shared.plan.envp.as_ptr());
    // SAFETY: the pointers are kept alive by `spawn`, and both lists end with a null pointer.
    unsafe {
        match shared.executable.opened() {
            Some(fd) => libc::syscall(
                libc::SYS_execveat,
                fd.as_raw_fd(),
                c"".as_ptr(),
                argv,
                envp,
                libc::AT_EMPTY_PATH,
            ) as c_int,
            None => libc::execve(shared.executable.path.as_ptr(), argv, envp),
        }
    };
    (ChildStep::Exec, io::Error::last_os_error())
}

/// Makes the child of `parent` what the plan says, but for what it runs. Only for a child: it rearranges the process, and makes nothing but system calls.
pub(super) fn set_up(plan: &ChildPlan<'_>, parent: Pid) -> Result<(), (ChildStep, io::Error)> {
    let failed = |error: io::Error| (ChildStep::Setup, error);
    if plan.leads {
        let _ = process::setpgid(None, None);
    }
    let _ = process::set_parent_process_death_signal(Some(Signal::KILL));
    // The parent may have died before the request was in place.
    if process::getppid() != Some(parent) {
        sys::exit_at_once(127);
    }
    if let Some(procs) = plan.cgroup {
        rustix::io::write(procs, b"0").map_err(|error| failed(error.into()))?;
    }
    for (target, fd) in (0..).zip([&plan.stdin].into_iter().chain(plan.outputs)) {
        sys::dup_onto(*fd, target).map_err(failed)?;
        if fd.as_raw_fd() == target {
            // Then nothing was done, and it would be closed when the program begins.
            let _ = fcntl_setfd(fd, FdFlags::empty());
        }
    }
    if let Some(cwd) = plan.cwd {
        process::chdir(cwd).map_err(|error| (ChildStep::Chdir, error.into()))?;
    }
    for &(resource, value) in plan.rlimits {
        // Raising a hard limit is refused; then the one in force is lower than what was asked for, which is safe.
        let _ = process::setrlimit(
            resource.into(),
            Rlimit {
                current: Some(value),
                maximum: Some(value),
            },
        );
    }
    let _ = sys::block_signals(&sys::signal_set([]));
    Ok(())
}
