//! The system calls that std does not offer, each behind a safe function: by rustix where that has them, else by libc. No policy here.

use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsRawFd, BorrowedFd, OwnedFd},
    time::Duration,
};

use libc::{c_int, pid_t};
use rustix::{
    fs::{MemfdFlags, OFlags, fcntl_setfl, memfd_create},
    io::{Errno, fcntl_dupfd_cloexec, retry_on_intr},
    net::{
        self, AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
    },
    process::{self, Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, waitid},
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
pub(crate) enum Wait {
    Reaped(Reaped),
    /// There are children, none of which has ended.
    StillRunning,
    NoChild,
}

pub(crate) fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Whether this process has any child, dead ones that nobody has waited for included.
pub(crate) fn has_children() -> bool {
    waitid(WaitId::All, WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT).is_ok()
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
    let ts_ptr = ts.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: `fds` is a valid slice of pollfd, `ts_ptr` is null or points to `ts`, which outlives the call.
    let result = unsafe { libc::ppoll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, ts_ptr, std::ptr::null()) };
    match check(result) {
        Err(error) if error.kind() == io::ErrorKind::Interrupted => {
            fds.iter_mut().for_each(|fd| fd.revents = 0);
            Ok(())
        }
        other => other.map(drop),
    }
}

/// The room that is made for a read at least. A buffer that needs more grows with what it has read: most never do, and memory that is
/// touched for the first time costs more than another read.
const ROOM: usize = 4096;

/// Appends at most `max` bytes from `fd` to `buf`, and less than there is only beyond a page. `Ok(0)` is the end of the file.
pub(crate) fn read_some(fd: BorrowedFd<'_>, buf: &mut Vec<u8>, max: usize) -> io::Result<usize> {
    buf.reserve(max.min(ROOM));
    let room = buf.spare_capacity_mut();
    let length = room.len().min(max);
    let n = retry_on_intr(|| rustix::io::read(fd, &mut room[..length]).map(|(read, _)| read.len()))?;
    // SAFETY: the kernel has initialised `n` bytes behind the old length.
    unsafe { buf.set_len(buf.len() + n) };
    Ok(n)
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

/// Sends what fits into a socket, without waiting for more room.
pub(crate) fn send(socket: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    Ok(net::send(socket, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?)
}

/// Sends a message in one piece, and waits for room. A reader who is gone is not an error worth telling.
pub(crate) fn send_whole(socket: BorrowedFd<'_>, bytes: &[u8]) {
    let _ = retry_on_intr(|| net::send(socket, bytes, SendFlags::NOSIGNAL));
}

/// The longest list of descriptors in one message.
const MAX_PASSED: usize = 8;

/// Sends a message with descriptors, which the reader gets copies of, without waiting for more room.
pub(crate) fn send_with(socket: BorrowedFd<'_>, bytes: &[u8], passed: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_PASSED))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&passed[..passed.len().min(MAX_PASSED)]));
    net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
    Ok(())
}

/// Receives a message of at most `max` bytes, and the descriptors that came with it.
pub(crate) fn receive_with(socket: BorrowedFd<'_>, max: usize) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let mut bytes = vec![0; max];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_PASSED))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = retry_on_intr(|| {
        net::recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC)
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
    Ok(net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Makes descriptor number `target` another name for `fd`.
pub(crate) fn dup_onto(fd: BorrowedFd<'_>, target: c_int) -> io::Result<()> {
    // SAFETY: dup2 on a descriptor that is open for the length of the borrow; the caller gives `target` away.
    check(unsafe { libc::dup2(fd.as_raw_fd(), target) }).map(drop)
}

/// Forks this process as `fork` does, with what else the kernel is to be told: the signal that tells of the child's end, or
/// `CLONE_PARENT`. Returns nothing in the child.
///
/// # Safety
/// For a process of one thread. What the C library does beside its own fork is left out, but for the number of the thread that it keeps: so
/// nothing that was registered with `pthread_atfork` is called.
pub(crate) unsafe fn fork_with(flags: c_int) -> io::Result<Option<u32>> {
    /// Where the C library keeps the number of this thread, which the kernel knows. Not in libc.
    const PR_GET_TID_ADDRESS: c_int = 40;
    let mut number = std::ptr::null_mut::<pid_t>();
    // SAFETY: there is room for the address. A kernel that does not tell leaves it as it is.
    unsafe { libc::prctl(PR_GET_TID_ADDRESS, &raw mut number) };
    let keeps = if number.is_null() { 0 } else { libc::CLONE_CHILD_SETTID | libc::CLONE_CHILD_CLEARTID };
    let nothing = std::ptr::null_mut::<pid_t>();
    // SAFETY: without a stack and without shared memory it is a fork. The last two arguments stand in another order elsewhere; there is no
    // flag for the other of them.
    let pid =
        unsafe { libc::syscall(libc::SYS_clone, (flags | keeps) as libc::c_ulong, nothing, nothing, number, number) };
    match check(pid as c_int)? {
        0 => Ok(None),
        pid => Ok(Some(pid as u32)),
    }
}

/// Memory that can be passed on, with these bytes in it.
pub(crate) fn memory(name: &std::ffi::CStr, bytes: &[u8]) -> io::Result<OwnedFd> {
    let mut file = std::fs::File::from(memfd_create(name, MemfdFlags::CLOEXEC)?);
    io::Write::write_all(&mut file, bytes)?;
    Ok(file.into())
}

/// Looks for an ended child: `Some(pid)` asks for that one, `None` for any whose end is told by SIGCHLD.
pub(crate) fn try_wait(pid: Option<u32>) -> Wait {
    let mut status = 0;
    // SAFETY: rusage is plain data, for which zeros are a value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    let (which, how) = pid.map_or((-1, 0), |pid| (pid as pid_t, libc::__WALL));
    loop {
        // SAFETY: both out-pointers are valid for the call.
        let got = unsafe { libc::wait4(which, &raw mut status, libc::WNOHANG | how, &raw mut usage) };
        return match got {
            0 => Wait::StillRunning,
            pid if pid > 0 => Wait::Reaped(Reaped {
                pid: pid as u32,
                status,
                user: timeval(usage.ru_utime),
                system: timeval(usage.ru_stime),
                max_rss_bytes: (usage.ru_maxrss as u64) * 1024,
            }),
            _ if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => continue,
            _ => Wait::NoChild,
        };
    }
}

fn timeval(tv: libc::timeval) -> Duration {
    Duration::new(tv.tv_sec as u64, tv.tv_usec as u32 * 1000)
}

/// Sends a signal to one process. A process that is gone is not an error worth telling.
pub(crate) fn kill(pid: u32, signal: c_int) {
    let _ = signal_to(pid as pid_t, signal);
}

/// Sends a signal, as `kill` takes its target. Rustix has no signals without a name.
pub(crate) fn signal_to(target: pid_t, signal: c_int) -> io::Result<()> {
    // SAFETY: kill has no memory effects.
    check(unsafe { libc::kill(target, signal) }).map(drop)
}

/// Whether this process may send signals to another.
pub(crate) fn may_signal(pid: u32) -> bool {
    // No signal is sent.
    signal_to(pid as pid_t, 0).err().and_then(|error| error.raw_os_error()) != Some(libc::EPERM)
}

/// Sends a signal to a process group.
pub(crate) fn kill_group(pgid: u32, signal: c_int) {
    let _ = signal_to(-(pgid as pid_t), signal);
}

/// A descriptor that keeps meaning this very process, also after its number is used again.
pub(crate) fn pidfd_open(pid: u32) -> io::Result<OwnedFd> {
    let pid = Pid::from_raw(pid as pid_t).ok_or(Errno::INVAL)?;
    Ok(process::pidfd_open(pid, PidfdFlags::empty())?)
}

pub(crate) fn pidfd_signal(pidfd: BorrowedFd<'_>, signal: c_int) {
    let no_info = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: a null siginfo is allowed and means that the kernel fills it in.
    unsafe { libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), signal, no_info, 0) };
}

/// Keeps all descriptors but the standard ones from programs that this process starts.
pub fn close_on_exec() {
    // SAFETY: plain integers; it closes nothing now.
    unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
}

/// Has a write beyond the largest size of a file fail, instead of ending this process. It is a handler, and not the signal ignored: that
/// would be passed on to commands.
pub fn survive_file_limit() {
    extern "C" fn nothing(_: c_int) {}
    // SAFETY: the handler does nothing, which is safe at any point.
    unsafe { libc::signal(libc::SIGXFSZ, nothing as extern "C" fn(c_int) as libc::sighandler_t) };
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
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse::<u32>().unwrap_or(0));
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
    let (policy, priority) = if urgent { (libc::SCHED_FIFO, 1) } else { (libc::SCHED_OTHER, 0) };
    // SAFETY: sched_param is plain data, for which zeros are a value, and valid for the call.
    unsafe {
        let mut param: libc::sched_param = std::mem::zeroed();
        param.sched_priority = priority;
        libc::sched_setscheduler(0, policy | libc::SCHED_RESET_ON_FORK, &raw const param);
    }
}
