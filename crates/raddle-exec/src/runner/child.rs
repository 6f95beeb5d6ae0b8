//! Starting the command: a clone that shares our memory until it has become the command.
//!
//! This is what `posix_spawn` does inside; ours exists because the child must also ask for the signal that follows its
//! parent's death, take its limits on and join its cgroup, which `posix_spawn` cannot be told. Between clone and exec only
//! system calls happen: no allocation, no lock, no formatting. Everything they need is prepared in a [`Plan`].

use std::{
    ffi::{CStr, c_char, c_int, c_void},
    io,
    os::fd::{AsRawFd, RawFd},
    ptr,
};

use super::program::Executable;

/// More than the child's few calls need; only the pages that are touched cost memory.
const STACK_SIZE: usize = 64 * 1024;

/// All that the child needs to become the attempt, whatever it runs.
pub(crate) struct Plan<'a> {
    /// Ends with a null pointer.
    pub(crate) envp: &'a [*const c_char],
    pub(crate) cwd: Option<&'a CStr>,
    /// What becomes descriptor 0.
    pub(crate) stdin: RawFd,
    /// What become descriptors 1, 2 and, for a function, 3. None of them may be below 3.
    pub(crate) outputs: &'a [RawFd],
    pub(crate) rlimits: &'a [(Resource, u64)],
    /// An open `cgroup.procs` to join.
    pub(crate) cgroup: Option<RawFd>,
    /// Whether it leads a process group of its own.
    pub(crate) leads: bool,
}

/// A resource number in the type that this C library wants.
#[cfg(target_env = "gnu")]
pub(crate) type Resource = libc::__rlimit_resource_t;
/// A resource number in the type that this C library wants.
#[cfg(not(target_env = "gnu"))]
pub(crate) type Resource = c_int;

/// The step at which the child gave up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Step {
    /// There is no child.
    Clone,
    /// Its process group, descriptors, cgroup or limits.
    Setup,
    /// Its folder.
    Chdir,
    /// The program.
    Exec,
}

/// The memory that children run on until they have exec'd. One is enough: the parent sleeps meanwhile.
pub(crate) struct Stack(*mut c_void);

struct Shared<'a> {
    plan: &'a Plan<'a>,
    executable: &'a Executable,
    argv: &'a [*const c_char],
    parent: libc::pid_t,
    failure: Option<(Step, c_int)>,
}

impl Stack {
    pub(crate) fn new() -> io::Result<Self> {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a fresh mapping at an address of the kernel's choice aliases nothing of ours.
        let base = unsafe { libc::mmap(ptr::null_mut(), STACK_SIZE, protection, flags | libc::MAP_STACK, -1, 0) };
        if base == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(Self(base)) }
    }

    /// Stacks grow down from here.
    fn top(&mut self) -> *mut c_void {
        self.0.wrapping_byte_add(STACK_SIZE)
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`; no child runs on it, since `spawn` returns after exec or exit.
        unsafe { libc::munmap(self.0, STACK_SIZE) };
    }
}

/// Starts the command and returns its pid, or the step that failed and why. Signals must be blocked, so that no handler of ours
/// can run in the child.
pub(crate) fn spawn(stack: &mut Stack, plan: &Plan<'_>, executable: &Executable) -> Result<u32, (Step, io::Error)> {
    let argv = executable.argv();
    // SAFETY: getpid cannot fail.
    let parent = unsafe { libc::getpid() };
    let mut shared = Shared { plan, executable, argv: &argv, parent, failure: None };
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: the stack is ours alone (`&mut`) and grows down from its end. CLONE_VFORK suspends this thread, the only one of the
    // process, until the child has exec'd or exited, so that `shared` and the plan outlive the child's use of them.
    let pid = unsafe { libc::clone(become_command, stack.top(), flags, ptr::from_mut(&mut shared).cast()) };
    if pid < 0 {
        return Err((Step::Clone, io::Error::last_os_error()));
    }
    // SAFETY: the child wrote through a pointer the compiler has lost sight of; a volatile read sees it.
    match unsafe { ptr::read_volatile(&raw const shared.failure) } {
        None => Ok(pid as u32),
        Some((step, errno)) => {
            // SAFETY: the child has exited, or is about to: its parent may wait for it.
            unsafe { libc::waitpid(pid, ptr::null_mut(), 0) };
            Err((step, io::Error::from_raw_os_error(errno)))
        }
    }
}

extern "C" fn become_command(shared: *mut c_void) -> c_int {
    // SAFETY: `spawn` passes a `Shared` that it does not touch until this process has exec'd or exited.
    let shared = unsafe { &mut *shared.cast::<Shared<'_>>() };
    // SAFETY: this is the child.
    let step = unsafe { exec(shared) };
    // SAFETY: reading errno right after the call that failed.
    shared.failure = Some((step, unsafe { *libc::__errno_location() }));
    // SAFETY: leaves without running any of the parent's exit handlers.
    unsafe { libc::_exit(127) }
}

/// Returns only if a step failed.
///
/// # Safety
/// Only for the child of a vfork-like clone: it rearranges the process and makes nothing but system calls.
unsafe fn exec(shared: &Shared<'_>) -> Step {
    // SAFETY: as above; the pointers are kept alive by `spawn`.
    unsafe {
        if let Err(step) = set_up(shared.plan, shared.parent) {
            return step;
        }
        let (argv, envp) = (shared.argv.as_ptr(), shared.plan.envp.as_ptr());
        // Returns only if it fails, and then the reason is in errno.
        let _ = match shared.executable.opened() {
            Some(fd) => {
                libc::syscall(libc::SYS_execveat, fd.as_raw_fd(), c"".as_ptr(), argv, envp, libc::AT_EMPTY_PATH)
                    as c_int
            }
            None => libc::execve(shared.executable.path.as_ptr(), argv, envp),
        };
    }
    Step::Exec
}

/// Makes the child of `parent` what the plan says, but for what it runs.
///
/// # Safety
/// Only for a child: it rearranges the process. It makes nothing but system calls.
pub(super) unsafe fn set_up(plan: &Plan<'_>, parent: libc::pid_t) -> Result<(), Step> {
    // SAFETY: plain system calls on integers and on pointers that the plan keeps alive.
    unsafe {
        if plan.leads {
            libc::setpgid(0, 0);
        }
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
        // The parent may have died before the request was in place.
        if libc::getppid() != parent {
            libc::_exit(127);
        }
        if let Some(procs) = plan.cgroup
            && libc::write(procs, c"0".as_ptr().cast(), 1) < 0
        {
            return Err(Step::Setup);
        }
        if libc::dup2(plan.stdin, 0) < 0 {
            return Err(Step::Setup);
        }
        for (target, fd) in (1..).zip(plan.outputs) {
            if libc::dup2(*fd, target) < 0 {
                return Err(Step::Setup);
            }
            if *fd == target {
                // Then nothing was done, and it would be closed when the program begins.
                libc::fcntl(target, libc::F_SETFD, 0);
            }
        }
        if let Some(cwd) = plan.cwd
            && libc::chdir(cwd.as_ptr()) < 0
        {
            return Err(Step::Chdir);
        }
        for &(resource, value) in plan.rlimits {
            let limit = libc::rlimit { rlim_cur: value, rlim_max: value };
            // Raising a hard limit is refused; then the one in force is lower than what was asked for, which is safe.
            libc::setrlimit(resource, &raw const limit);
        }
        let mut none = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, ptr::null_mut());
    }
    Ok(())
}
