//! The system calls that std does not offer, each behind a safe function: by rustix where that has them, else by libc. No policy here.

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

/// What a non-blocking wait found.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WaitResult {
    Reaped(Reaped),
    /// There are children, none of which has ended.
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

/// Whether this process has any child, dead ones that nobody has waited for included.
pub(crate) fn has_children() -> bool {
    waitid(
        WaitId::All,
        WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT,
    )
    .is_ok()
}

/// Time since boot, suspended time included: all deadlines of this crate are readings of this clock.
pub(crate) fn now() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Waits for events on `fds` for at most `timeout`. Entries with a negative descriptor are skipped by the kernel.
pub(crate) fn poll(fds: &mut [libc::pollfd], timeout: Option<Duration>) -> io::Result<()> {
    let ts = timeout.map(|t| libc::timespec {
        // A century is for ever, and fits every timespec.
        tv_sec: t.as_secs().min(3_000_000_000) as libc::time_t,
        tv_nsec: t.subsec_nanos().into(),
    });
    let ts_ptr = ts.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: `fds` is a valid slice of pollfd, `ts_ptr` is null or points to `ts`, which outlives the call.
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

/// The room for a read. A buffer that needs more grows with what it has read.
const ROOM: usize = 4096;

/// Appends bytes from `fd` to `buf`: at least a page, if there are so many. `Ok(0)` is the end of the file.
pub(crate) fn read_some(fd: BorrowedFd<'_>, buf: &mut Vec<u8>) -> io::Result<usize> {
    buf.reserve(ROOM);
    Ok(retry_on_intr(|| rustix::io::read(fd, spare_capacity(buf)))?)
}

/// Writes what `fd` takes of `bytes`.
pub(crate) fn write_some(fd: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    Ok(retry_on_intr(|| rustix::io::write(fd, bytes))?)
}

/// For pipes and sockets that have no other status flag: they are not read first, which would cost a call per pipe.
pub(crate) fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    Ok(fcntl_setfl(fd, OFlags::NONBLOCK)?)
}

/// A close-on-exec duplicate with a number of at least `min`.
pub(crate) fn dup_above(fd: BorrowedFd<'_>, min: c_int) -> io::Result<OwnedFd> {
    Ok(fcntl_dupfd_cloexec(fd, min)?)
}

/// Sends a message in one piece, and waits for room. A reader who is gone is not an error worth telling.
pub(crate) fn send_whole(socket: BorrowedFd<'_>, bytes: &[u8]) {
    let _ = retry_on_intr(|| net::send(socket, bytes, SendFlags::NOSIGNAL));
}

/// The longest list of descriptors in one message.
const MAX_PASSED: usize = 8;

/// Sends a message with descriptors, which the reader gets copies of, without waiting for more room.
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

/// Receives a message of at most `max` bytes, and the descriptors that came with it.
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

/// Two ends of a connection that keeps the bounds of messages, and that tells when the other end is closed.
pub(crate) fn seqpacket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(net::socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?)
}

/// Makes descriptor number `target` another name for `fd`.
pub(crate) fn dup_onto(fd: BorrowedFd<'_>, target: c_int) -> io::Result<()> {
    // SAFETY: dup2 on a descriptor that is open for the length of the borrow; the caller gives `target` away.
    check(unsafe { libc::dup2(fd.as_raw_fd(), target) }).map(drop)
}

/// Forks this process as `fork` does, with `flags` of clone(2): the signal that reports the child's end, `CLONE_PARENT`, namespaces. Runs `child` in the
/// new process, which exits with the code that it returns, and returns the pid of that process.
///
/// # Safety
/// The process has one thread. Nothing that was registered with `pthread_atfork` is called; of what the C library does besides only the number of the
/// thread is kept right.
pub(crate) unsafe fn fork(flags: c_int, child: impl FnOnce() -> c_int) -> io::Result<u32> {
    /// Where the C library keeps the number of this thread. Not in libc.
    const PR_GET_TID_ADDRESS: c_int = 40;
    let mut number = ptr::null_mut::<pid_t>();
    let nothing = ptr::null_mut::<pid_t>();
    // SAFETY: there is room for the address, and a kernel without the request leaves it as it is. Without a stack and without shared memory a clone is a
    // fork. The last two arguments stand in another order on other architectures; there is no flag for the other of them.
    let pid = unsafe {
        libc::prctl(PR_GET_TID_ADDRESS, &raw mut number);
        let keeps = if number.is_null() {
            0
        } else {
            libc::CLONE_CHILD_SETTID | libc::CLONE_CHILD_CLEARTID
        };
        libc::syscall(
            libc::SYS_clone,
            (flags | keeps) as libc::c_ulong,
            nothing,
            nothing,
            number,
            number,
        )
    };
    match check(pid as c_int)? {
        0 => exit_at_once(child()),
        pid => Ok(pid as u32),
    }
}

/// Ends this process without running the exit handlers that its parent has registered.
pub(crate) fn exit_at_once(code: c_int) -> ! {
    // SAFETY: the process ends.
    unsafe { libc::_exit(code) }
}

/// Memory that can be passed on, with these bytes in it.
pub(crate) fn memory(name: &std::ffi::CStr, bytes: &[u8]) -> io::Result<OwnedFd> {
    let mut file = std::fs::File::from(memfd_create(name, MemfdFlags::CLOEXEC)?);
    file.write_all(bytes)?;
    file.rewind()?;
    Ok(file.into())
}

/// Looks for an ended child: `Some(pid)` asks for that one, `None` for any whose end is told by SIGCHLD.
pub(crate) fn try_wait(pid: Option<u32>) -> WaitResult {
    let mut status = 0;
    let (which, how) = pid.map_or((-1, 0), |pid| (pid as pid_t, libc::__WALL));
    // SAFETY: rusage is plain data, for which zeros are a value; both out-pointers are valid for the call. It does not block, and so is not interrupted.
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

/// Waits for the end of a child whose status is of no interest.
pub(crate) fn wait_for_end(pid: u32) {
    // Also one whose end is reported by another signal than SIGCHLD.
    let options = WaitIdOptions::EXITED | WaitIdOptions::from_bits_retain(libc::__WALL as u32);
    let _ = retry_on_intr(|| waitid(WaitId::Pid(pid_of(pid)), options));
}

fn timeval(tv: libc::timeval) -> Duration {
    Duration::new(tv.tv_sec as u64, tv.tv_usec as u32 * 1000)
}

/// The pid of a process that is there: never 0.
pub(crate) fn pid_of(pid: u32) -> Pid {
    Pid::from_raw(pid as pid_t).expect("no process has the number 0")
}

/// Sends a signal to one process. A process that is gone is not an error worth telling.
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

/// Keeps all descriptors but the standard ones from programs that this process starts.
pub fn close_on_exec() {
    close_range(3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC);
}

/// Closes all descriptors from `first` on. Only for a process that uses none of them any more: a fork that is to run something else.
pub(crate) fn close_from(first: c_int) {
    close_range(first as u32, u32::MAX, 0);
}

pub(crate) fn close_range(first: u32, last: u32, flags: libc::c_uint) {
    // SAFETY: plain integers. Callers close only what belongs to a part of the program that does not run in this process.
    unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) };
}

/// Sets what a signal does: a handler, `SIG_DFL` or `SIG_IGN`.
fn set_action(signal: c_int, action: libc::sighandler_t, flags: c_int) {
    // SAFETY: all zeros is a valid action. The handlers of this crate store to an atomic at most.
    unsafe {
        let mut new: libc::sigaction = std::mem::zeroed();
        (new.sa_sigaction, new.sa_flags) = (action, flags);
        libc::sigaction(signal, &raw const new, ptr::null_mut());
    }
}

/// Has a signal call `handler`, which does no more than store to an atomic. System calls go on after it.
pub(crate) fn handle(signal: c_int, handler: extern "C" fn(c_int)) {
    set_action(signal, handler as libc::sighandler_t, libc::SA_RESTART);
}

/// Ignores a signal.
pub(crate) fn ignore(signal: c_int) {
    set_action(signal, libc::SIG_IGN, 0);
}

/// Gives a signal its default action. `flags` are those of sigaction(2).
pub(crate) fn set_default(signal: c_int, flags: c_int) {
    set_action(signal, libc::SIG_DFL, flags);
}

/// Sets the signals that are blocked.
pub(crate) fn block_signals(blocked: &libc::sigset_t) -> io::Result<()> {
    // SAFETY: the set is valid for the call.
    check(unsafe { libc::sigprocmask(libc::SIG_SETMASK, blocked, ptr::null_mut()) }).map(drop)
}

/// Unblocks every signal. A process inherits the mask of the process that started it, and a blocked SIGTERM would never reach it.
pub fn unblock_signals() {
    // Fails only for an argument that is not valid.
    let _ = block_signals(&signal_set([]));
}

/// Keeps other processes of this user from reading the memory and the environment of this one in `/proc`, and from attaching to it.
pub fn deny_inspection() {
    // Fails only for an argument that is not valid.
    let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
}

/// A set of these signals.
pub(crate) fn signal_set(signals: impl IntoIterator<Item = c_int>) -> libc::sigset_t {
    // SAFETY: a signal set is plain data, and valid for the calls; numbers that are no signals are refused.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in signals {
            libc::sigaddset(&raw mut set, signal);
        }
        set
    }
}

/// Has a write beyond the largest size of a file fail, instead of ending this process. It is a handler, and not the signal ignored: that
/// would be passed on to commands.
pub fn survive_file_limit() {
    extern "C" fn nothing(_: c_int) {}
    handle(libc::SIGXFSZ, nothing);
}

/// Has the kernel continue this process when its parent dies. One that somebody has stopped could otherwise not see that: a runner that its worker
/// is gone, and its task would run beside the next attempt; a worker that its manager is gone.
pub fn wake_when_parent_dies() {
    let _ = process::set_parent_process_death_signal(Some(Signal::CONT));
}

/// Orphaned descendants of this process become its children instead of init's.
pub(crate) fn set_subreaper() -> io::Result<()> {
    Ok(process::set_child_subreaper(Some(process::getpid()))?)
}

/// Whether the processes of a user are counted in each user namespace by itself, as since Linux 5.14.
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

/// The niceness that puts an ordinary process before all others.
pub(crate) const HIGHEST_PRIORITY: i32 = -20;

pub(crate) fn niceness() -> i32 {
    process::getpriority_process(None).unwrap_or(0)
}

/// Sets the niceness of this process. To lower it needs a privilege, without which nothing happens.
pub(crate) fn set_niceness(niceness: i32) {
    let _ = process::setpriority_process(None, niceness);
}

/// Puts this process before all ordinary ones, or among them again. Its children are ordinary in any case. Needs a privilege, without
/// which nothing happens.
pub(crate) fn set_urgent(urgent: bool) {
    let (policy, priority) = if urgent {
        (libc::SCHED_FIFO, 1)
    } else {
        (libc::SCHED_OTHER, 0)
    };
    // SAFETY: sched_param is plain data, for which zeros are a value, and valid for the call.
    unsafe {
        let mut param: libc::sched_param = std::mem::zeroed();
        param.sched_priority = priority;
        libc::sched_setscheduler(0, policy | libc::SCHED_RESET_ON_FORK, &raw const param);
    }
}
