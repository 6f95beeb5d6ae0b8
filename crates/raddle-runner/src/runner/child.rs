//! Starts a command: a clone that shares the runner's memory until exec.
//!
//! This is how `posix_spawn` works inside. It is reimplemented because the child must also set
//! PR_SET_PDEATHSIG, apply rlimits and join its cgroup, for which `posix_spawn` has no options.
//! Between clone and exec the child makes only system calls: no allocation, no lock, no formatting.
//! [`ChildPlan`] holds everything it needs.

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

/// More than the child's few calls need. Only pages that are touched cost memory.
const STACK_SIZE: usize = 64 * 1024;

/// Everything that a child needs to become the attempt.
#[derive(Clone, Copy)]
pub(crate) struct ChildPlan<'a> {
    /// Ends with a null pointer.
    pub(crate) envp: &'a [*const c_char],
    pub(crate) cwd: Option<&'a CStr>,
    /// Becomes descriptor 0.
    pub(crate) stdin: BorrowedFd<'a>,
    /// Become descriptors 1, 2 and, for a function, 3. None of them may be below 3.
    pub(crate) outputs: &'a [BorrowedFd<'a>],
    pub(crate) rlimits: &'a [(Resource, u64)],
    /// An open `cgroup.procs` to join.
    pub(crate) cgroup: Option<BorrowedFd<'a>>,
    /// Whether the child leads its own process group.
    pub(crate) leads: bool,
}

/// A resource of setrlimit(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Resource {
    /// Open files.
    Nofile,
    /// Memory, except what is mapped from files.
    Data,
    /// Processes of the user.
    Nproc,
    /// Size of a file.
    Fsize,
    /// Size of a core dump.
    Core,
}

/// The step at which the start failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ChildStep {
    /// There is no child.
    Clone,
    /// Its process group, descriptors, cgroup or rlimits.
    Setup,
    /// Its working directory.
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

/// Starts the command and returns its pid, or the step that failed with its error. Signals must be
/// blocked, so that no handler runs in the child.
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
    // The stack grows down from here.
    let top = stack.spare_capacity_mut().as_mut_ptr_range().end.cast();
    // SAFETY: the stack is exclusive and sufficiently aligned. CLONE_VFORK suspends this thread,
    // the only one of the process, until the child has exec'd or exited, so the stack, `shared` and
    // the plan outlive the child's use of them.
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
    // SAFETY: the child wrote through a pointer that the compiler cannot track; a volatile read
    // sees the write.
    match unsafe { ptr::read_volatile(&raw const shared.failure) } {
        None => Ok(pid as u32),
        Some((step, errno)) => {
            sys::wait_for_end(pid as u32);
            Err((step, io::Error::from_raw_os_error(errno)))
        }
    }
}

extern "C" fn become_command(shared: *mut c_void) -> c_int {
    // SAFETY: `spawn` passes a `ChildReport` that it does not touch until this process has exec'd
    // or exited.
    let shared = unsafe { &mut *shared.cast::<ChildReport<'_>>() };
    let (step, error) =
        set_up(shared.plan, shared.parent).map_or_else(|failed| failed, |()| exec(shared));
    shared.failure = Some((step, error.raw_os_error().unwrap_or(0)));
    sys::exit_at_once(127)
}

/// Executes the program. Returns only on failure.
fn exec(shared: &ChildReport<'_>) -> (ChildStep, io::Error) {
    let (argv, envp) = (shared.argv.as_ptr(), shared.plan.envp.as_ptr());
    // SAFETY: `spawn` keeps the pointers alive, and both lists end with a null pointer.
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

/// Applies the plan to this process, a child of `parent`, except for exec. Makes only system calls.
pub(super) fn set_up(plan: &ChildPlan<'_>, parent: Pid) -> Result<(), (ChildStep, io::Error)> {
    let failed = |error: io::Error| (ChildStep::Setup, error);
    if plan.leads {
        let _ = process::setpgid(None, None);
    }
    let _ = process::set_parent_process_death_signal(Some(Signal::KILL));
    // The parent may have died before PR_SET_PDEATHSIG was set.
    if process::getppid() != Some(parent) {
        sys::exit_at_once(127);
    }
    if let Some(procs) = plan.cgroup {
        rustix::io::write(procs, b"0").map_err(|error| failed(error.into()))?;
    }
    for (target, fd) in (0..).zip([&plan.stdin].into_iter().chain(plan.outputs)) {
        sys::dup_onto(*fd, target).map_err(failed)?;
        if fd.as_raw_fd() == target {
            // dup2 did nothing then, and the descriptor is still close-on-exec.
            let _ = fcntl_setfd(fd, FdFlags::empty());
        }
    }
    if let Some(cwd) = plan.cwd {
        process::chdir(cwd).map_err(|error| (ChildStep::Chdir, error.into()))?;
    }
    for &(resource, value) in plan.rlimits {
        // Raising a hard limit is refused. The limit in force is then lower than requested, which
        // is safe.
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
