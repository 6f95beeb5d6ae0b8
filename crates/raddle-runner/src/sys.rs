//! Safe wrappers for system calls that std does not offer, on top of rustix or libc. This module
//! contains no policy.

use std::{
    io::{self, IoSlice, IoSliceMut, Seek as _, Write as _},
    mem::MaybeUninit,
    os::fd::{AsRawFd, BorrowedFd, OwnedFd},
    ptr,
    time::Duration,
};

use libc::{c_int, pid_t};
use rustix::{
    buffer::spare_capacity,
    fs::{MemfdFlags, OFlags, fcntl_setfl, memfd_create},
    io::{fcntl_dupfd_cloexec, retry_on_intr},
    net::{
        self, AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags,
        SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
    },
    process::{self, Pid, Signal, WaitId, WaitIdOptions, waitid},
    time::{ClockId, clock_gettime},
};

/// A process that was waited for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reaped {
    pub(crate) pid: u32,
    /// The raw wait status.
    pub(crate) status: c_int,
    pub(crate) user: Duration,
    pub(crate) system: Duration,
    pub(crate) max_rss_bytes: u64,
}

/// Result of a non-blocking wait.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WaitResult {
    Reaped(Reaped),
    /// There are children, but none has exited.
    StillRunning,
    NoChild,
}

pub(crate) fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// Whether this process has any child, zombies included.
pub(crate) fn has_children() -> bool {
    waitid(
        WaitId::All,
        WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT,
    )
    .is_ok()
}

/// Reading of `CLOCK_MONOTONIC`. All deadlines of this crate use this clock.
pub(crate) fn now() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Waits for events on `fds` for at most `timeout`. The kernel skips entries with a negative
/// descriptor.
pub(crate) fn poll(fds: &mut [libc::pollfd], timeout: Option<Duration>) -> io::Result<()> {
    let ts = timeout.map(|t| libc::timespec {
        // About a century: never, in practice, and it fits every timespec.
        tv_sec: t.as_secs().min(3_000_000_000) as libc::time_t,
        tv_nsec: t.subsec_nanos().into(),
    });
    let ts_ptr = ts.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: `fds` is a valid slice of pollfd, `ts_ptr` is null or points to `ts`, which outlives
    // the call.
    let result = unsafe {
        libc::ppoll(
            fds.as_mut_ptr(),
            fds.len() as libc::nfds_t,
            ts_ptr,
            ptr::null(),
        )
    };
    match check(result) {
        Err(error) if error.kind() == io::ErrorKind::Interrupted => {
            fds.iter_mut().for_each(|fd| fd.revents = 0);
            Ok(())
        }
        other => other.map(drop),
    }
}

/// Minimum space for a read. A buffer that needs more grows as it is filled.
const MIN_READ: usize = 4096;

/// Reads up to at least one page from `fd` and appends it to `buf`. `Ok(0)` means end of file.
pub(crate) fn read_some(fd: BorrowedFd<'_>, buf: &mut Vec<u8>) -> io::Result<usize> {
    buf.reserve(MIN_READ);
    Ok(retry_on_intr(|| rustix::io::read(fd, spare_capacity(buf)))?)
}

/// Writes as many of `bytes` as `fd` accepts.
pub(crate) fn write_some(fd: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    Ok(retry_on_intr(|| rustix::io::write(fd, bytes))?)
}

/// Sets O_NONBLOCK. Only for pipes and sockets without other status flags: the current flags are
/// not read, which saves a call per pipe.
pub(crate) fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    Ok(fcntl_setfl(fd, OFlags::NONBLOCK)?)
}

/// Duplicates a descriptor, close-on-exec, to a number of at least `min`.
pub(crate) fn dup_above(fd: BorrowedFd<'_>, min: c_int) -> io::Result<OwnedFd> {
    Ok(fcntl_dupfd_cloexec(fd, min)?)
}

/// Sends a message in one piece, and waits for space. A closed peer is not an error.
pub(crate) fn send_whole(socket: BorrowedFd<'_>, bytes: &[u8]) {
    let _ = retry_on_intr(|| net::send(socket, bytes, SendFlags::NOSIGNAL));
}

/// Maximum number of descriptors in one message.
const MAX_PASSED: usize = 8;

/// Sends a message with descriptors (SCM_RIGHTS), without waiting for space.
pub(crate) fn send_with(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    passed: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_PASSED))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(
        &passed[..passed.len().min(MAX_PASSED)],
    ));
    net::sendmsg(
        socket,
        &[IoSlice::new(bytes)],
        &mut control,
        SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
    )?;
    Ok(())
}

/// Receives a message of at most `max` bytes, with its descriptors.
pub(crate) fn receive_with(
    socket: BorrowedFd<'_>,
    max: usize,
) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let mut bytes = vec![0; max];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_PASSED))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = retry_on_intr(|| {
        net::recvmsg(
            socket,
            &mut [IoSliceMut::new(&mut bytes)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        )
    })?;
    bytes.truncate(got.bytes);
    let passed = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(passed) => Some(passed),
        _ => None,
    });
    Ok((bytes, passed.flatten().collect()))
}

/// Creates a connected socket pair that keeps message boundaries and reports when the other end is
/// closed.
pub(crate) fn seqpacket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(net::socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?)
}

/// Makes descriptor number `target` a duplicate of `fd`.
pub(crate) fn dup_onto(fd: BorrowedFd<'_>, target: c_int) -> io::Result<()> {
    // SAFETY: dup2 on a descriptor that is open for the length of the borrow; the caller gives up
    // `target`.
    check(unsafe { libc::dup2(fd.as_raw_fd(), target) }).map(drop)
}

/// Forks this process with `flags` of clone(2): the exit signal, `CLONE_PARENT`, namespaces. Runs
/// `child` in the new process, which exits with the returned code. Returns the pid of that process.
///
/// # Safety
/// The process must have one thread. Handlers of `pthread_atfork` are not called. Of the C
/// library's own bookkeeping, only the cached thread id is kept correct.
pub(crate) unsafe fn fork(flags: c_int, child: impl FnOnce() -> c_int) -> io::Result<u32> {
    /// Returns the address at which the C library caches this thread's id. The crate libc lacks the
    /// constant.
    const PR_GET_TID_ADDRESS: c_int = 40;
    let mut tid_cache = ptr::null_mut::<pid_t>();
    let unused = ptr::null_mut::<pid_t>();
    // SAFETY: `tid_cache` has space for the address, and a kernel without this request leaves it
    // unchanged. A clone without a stack and without shared memory is a fork. Other architectures
    // swap the last two arguments, but the flags here use only one of them, and both are the same
    // pointer.
    let pid = unsafe {
        libc::prctl(PR_GET_TID_ADDRESS, &raw mut tid_cache);
        let keeps = if tid_cache.is_null() {
            0
        } else {
            libc::CLONE_CHILD_SETTID | libc::CLONE_CHILD_CLEARTID
        };
        libc::syscall(
            libc::SYS_clone,
            (flags | keeps) as libc::c_ulong,
            unused,
            unused,
            tid_cache,
            tid_cache,
        )
    };
    match check(pid as c_int)? {
        0 => exit_at_once(child()),
        pid => Ok(pid as u32),
    }
}

/// Exits without running the exit handlers that the parent process has registered.
pub(crate) fn exit_at_once(code: c_int) -> ! {
    // SAFETY: the process ends.
    unsafe { libc::_exit(code) }
}

/// Creates a memfd with these bytes.
pub(crate) fn create_memfd(name: &std::ffi::CStr, bytes: &[u8]) -> io::Result<OwnedFd> {
    let mut file = std::fs::File::from(memfd_create(name, MemfdFlags::CLOEXEC)?);
    file.write_all(bytes)?;
    file.rewind()?;
    Ok(file.into())
}

/// Waits for a child without blocking: the one with this pid, or, for `None`, any whose exit signal
/// is SIGCHLD.
pub(crate) fn try_wait(pid: Option<u32>) -> WaitResult {
    let mut status = 0;
    let (which, how) = pid.map_or((-1, 0), |pid| (pid as pid_t, libc::__WALL));
    // SAFETY: rusage is plain data, for which zeros are valid; both out-pointers are valid for the
    // call. WNOHANG calls do not block, so they are not interrupted.
    let (got, usage) = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        (
            libc::wait4(which, &raw mut status, libc::WNOHANG | how, &raw mut usage),
            usage,
        )
    };
    match got {
        0 => WaitResult::StillRunning,
        pid if pid > 0 => WaitResult::Reaped(Reaped {
            pid: pid as u32,
            status,
            user: timeval(usage.ru_utime),
            system: timeval(usage.ru_stime),
            max_rss_bytes: (usage.ru_maxrss as u64) * 1024,
        }),
        _ => WaitResult::NoChild,
    }
}

/// Waits for a child to exit and discards its status.
pub(crate) fn wait_for_end(pid: u32) {
    // __WALL: also a child whose exit signal is not SIGCHLD.
    let options = WaitIdOptions::EXITED | WaitIdOptions::from_bits_retain(libc::__WALL as u32);
    let _ = retry_on_intr(|| waitid(WaitId::Pid(pid_of(pid)), options));
}

fn timeval(tv: libc::timeval) -> Duration {
    Duration::new(tv.tv_sec as u64, tv.tv_usec as u32 * 1000)
}

/// The pid of an existing process, which is never 0.
pub(crate) fn pid_of(pid: u32) -> Pid {
    Pid::from_raw(pid as pid_t).expect("no process has the number 0")
}

/// Sends a signal to one process. A process that has exited is not an error.
pub(crate) fn kill(pid: u32, signal: Signal) {
    let _ = process::kill_process(pid_of(pid), signal);
}

/// Whether this process may send signals to another.
pub(crate) fn may_signal(pid: u32) -> bool {
    process::test_kill_process(pid_of(pid)) != Err(rustix::io::Errno::PERM)
}

/// Sends a signal to a process group.
pub(crate) fn kill_group(pgid: u32, signal: Signal) {
    let _ = process::kill_process_group(pid_of(pgid), signal);
}

/// Makes all descriptors except the standard ones close-on-exec.
pub fn close_on_exec() {
    close_range(3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC);
}

/// Closes all descriptors from `first` on. Only for a fork that uses none of them.
pub(crate) fn close_from(first: c_int) {
    close_range(first as u32, u32::MAX, 0);
}

pub(crate) fn close_range(first: u32, last: u32, flags: libc::c_uint) {
    // SAFETY: plain integers. Callers close only descriptors of code that does not run in this
    // process.
    unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) };
}

/// Sets the action of a signal: a handler, `SIG_DFL` or `SIG_IGN`.
fn set_action(signal: c_int, action: libc::sighandler_t, flags: c_int) {
    // SAFETY: all zeros is a valid action. The handlers of this crate at most store to an atomic.
    unsafe {
        let mut new: libc::sigaction = std::mem::zeroed();
        (new.sa_sigaction, new.sa_flags) = (action, flags);
        libc::sigaction(signal, &raw const new, ptr::null_mut());
    }
}

/// Installs `handler` for a signal. The handler must at most store to an atomic. System calls are
/// restarted.
pub(crate) fn set_handler(signal: c_int, handler: extern "C" fn(c_int)) {
    set_action(signal, handler as libc::sighandler_t, libc::SA_RESTART);
}

/// Ignores a signal.
pub(crate) fn ignore(signal: c_int) {
    set_action(signal, libc::SIG_IGN, 0);
}

/// Restores the default action of a signal. `flags` are those of sigaction(2).
pub(crate) fn set_default(signal: c_int, flags: c_int) {
    set_action(signal, libc::SIG_DFL, flags);
}

/// Sets the mask of blocked signals.
pub(crate) fn block_signals(blocked: &libc::sigset_t) -> io::Result<()> {
    // SAFETY: the set is valid for the call.
    check(unsafe { libc::sigprocmask(libc::SIG_SETMASK, blocked, ptr::null_mut()) }).map(drop)
}

/// Unblocks every signal. A process inherits the mask of its parent, and a blocked SIGTERM would
/// never arrive.
pub fn unblock_signals() {
    // Fails only for an invalid argument.
    let _ = block_signals(&signal_set([]));
}

/// Clears the dumpable flag: other processes of this user cannot read memory and environment of
/// this one in `/proc`, or attach to it.
pub fn deny_inspection() {
    // Fails only for an invalid argument.
    let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
}

/// Creates a set of these signals.
pub(crate) fn signal_set(signals: impl IntoIterator<Item = c_int>) -> libc::sigset_t {
    // SAFETY: a signal set is plain data, and valid for the calls; invalid signal numbers are
    // refused.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in signals {
            libc::sigaddset(&raw mut set, signal);
        }
        set
    }
}

/// Makes a write beyond RLIMIT_FSIZE fail instead of ending this process. SIGXFSZ gets a handler
/// and is not ignored, because commands would inherit the ignored signal.
pub fn survive_file_limit() {
    extern "C" fn ignore_signal(_: c_int) {}
    set_handler(libc::SIGXFSZ, ignore_signal);
}

/// Makes the kernel send SIGCONT to this process when its parent dies (PR_SET_PDEATHSIG). Otherwise
/// a stopped process would not notice: a stopped runner would keep its attempt while the next
/// attempt runs elsewhere, and a stopped worker would outlive its manager.
pub fn wake_when_parent_dies() {
    let _ = process::set_parent_process_death_signal(Some(Signal::CONT));
}

/// Makes orphaned descendants of this process its children instead of init's.
pub(crate) fn set_subreaper() -> io::Result<()> {
    Ok(process::set_child_subreaper(Some(process::getpid()))?)
}

/// Whether the kernel counts RLIMIT_NPROC per user namespace (since Linux 5.14).
pub(crate) fn counts_by_namespace() -> bool {
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy();
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map(|part| part.parse::<u32>().unwrap_or(0));
    (numbers.next(), numbers.next()) >= (Some(5), Some(14))
}

pub(crate) fn is_root() -> bool {
    process::geteuid().is_root()
}

/// Highest scheduling priority of an ordinary process.
pub(crate) const HIGHEST_PRIORITY: i32 = -20;

pub(crate) fn niceness() -> i32 {
    process::getpriority_process(None).unwrap_or(0)
}

/// Sets the niceness of this process. Lowering it needs a privilege; without it nothing happens.
pub(crate) fn set_niceness(niceness: i32) {
    let _ = process::setpriority_process(None, niceness);
}

/// Switches this process to real-time scheduling (SCHED_FIFO), or back. Its children are not
/// affected. Needs a privilege; without it nothing happens.
pub(crate) fn set_urgent(urgent: bool) {
    let (policy, priority) = if urgent {
        (libc::SCHED_FIFO, 1)
    } else {
        (libc::SCHED_OTHER, 0)
    };
    // SAFETY: sched_param is plain data, for which zeros are valid, and it is valid for the call.
    unsafe {
        let mut param: libc::sched_param = std::mem::zeroed();
        param.sched_priority = priority;
        libc::sched_setscheduler(0, policy | libc::SCHED_RESET_ON_FORK, &raw const param);
    }
}
