//! The system calls that std does not offer, each behind a safe function of its own. No policy here.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    time::Duration,
};

use libc::{c_int, pid_t};

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
    // SAFETY: an all-zero siginfo is a valid one, and only written to.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: waits for nothing, and leaves every child as it is.
    let found = unsafe { libc::waitid(libc::P_ALL, 0, &raw mut info, libc::WEXITED | libc::WNOHANG | libc::WNOWAIT) };
    check(found).is_ok()
}

/// Time since boot, suspended time included: all deadlines of this crate are readings of this clock.
pub(crate) fn now() -> Duration {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `ts` is a valid place for the result.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut ts) };
    Duration::new(ts.tv_sec as u64, ts.tv_nsec as u32)
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
    loop {
        let room = buf.spare_capacity_mut();
        // SAFETY: pointer and length are those of the spare capacity.
        let n = unsafe { libc::read(fd.as_raw_fd(), room.as_mut_ptr().cast(), room.len().min(max)) };
        if n >= 0 {
            // SAFETY: the kernel has initialised `n` bytes behind the old length.
            unsafe { buf.set_len(buf.len() + n as usize) };
            return Ok(n as usize);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Writes what `fd` takes of `bytes`.
pub(crate) fn write_some(fd: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    loop {
        // SAFETY: pointer and length come from one slice.
        let n = unsafe { libc::write(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len()) };
        if n >= 0 {
            return Ok(n as usize);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// For pipes and sockets that have no other status flag: they are not read first, which would cost a call per pipe.
pub(crate) fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: plain integers, and a descriptor that is open for the length of the borrow.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) }).map(drop)
}

/// A close-on-exec duplicate with a number of at least `min`.
pub(crate) fn dup_above(fd: BorrowedFd<'_>, min: c_int) -> io::Result<OwnedFd> {
    // SAFETY: the new descriptor is owned by nobody else.
    unsafe { Ok(OwnedFd::from_raw_fd(check(libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, min))?)) }
}

/// Sends what fits into a socket, without waiting for more room.
pub(crate) fn send(socket: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: the buffer is valid for its length and only read.
    let sent = unsafe { libc::send(socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Whether the other end of a socket is open, and has said nothing that was not read.
pub(crate) fn is_quiet(socket: BorrowedFd<'_>) -> bool {
    let (mut byte, flags) = (0u8, libc::MSG_PEEK | libc::MSG_DONTWAIT);
    // SAFETY: there is room for the one byte that is asked for.
    let found = unsafe { libc::recv(socket.as_raw_fd(), (&raw mut byte).cast(), 1, flags) };
    found < 0 && io::Error::last_os_error().kind() == io::ErrorKind::WouldBlock
}

/// Sends a message in one piece, and waits for room. A reader who is gone is not an error worth telling.
pub(crate) fn send_whole(socket: BorrowedFd<'_>, bytes: &[u8]) {
    loop {
        // SAFETY: the buffer is valid for its length and only read.
        let sent = unsafe { libc::send(socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), libc::MSG_NOSIGNAL) };
        if sent >= 0 || io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return;
        }
    }
}

/// The longest list of descriptors in one message.
const MAX_PASSED: usize = 8;
/// Room for a control message with that many, aligned as the kernel wants it.
type Ancillary = [u64; 8];

/// Sends a message with descriptors, which the reader gets copies of, without waiting for more room.
pub(crate) fn send_with(socket: BorrowedFd<'_>, bytes: &[u8], passed: &[BorrowedFd<'_>]) -> io::Result<()> {
    let passed: Vec<c_int> = passed.iter().take(MAX_PASSED).map(AsRawFd::as_raw_fd).collect();
    let size = size_of_val(&passed[..]) as u32;
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut control: Ancillary = [0; 8];
    // SAFETY: a header of zeros is valid. Every pointer in it is to a local that outlives the call; the control message is written within
    // `control`, which has room for `MAX_PASSED` descriptors.
    let sent = unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = libc::CMSG_SPACE(size) as _;
        let head = libc::CMSG_FIRSTHDR(&raw const message);
        (*head).cmsg_level = libc::SOL_SOCKET;
        (*head).cmsg_type = libc::SCM_RIGHTS;
        (*head).cmsg_len = libc::CMSG_LEN(size) as _;
        std::ptr::copy_nonoverlapping(passed.as_ptr().cast(), libc::CMSG_DATA(head), size as usize);
        libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT)
    };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Receives a message of at most `max` bytes, and the descriptors that came with it.
pub(crate) fn receive_with(socket: BorrowedFd<'_>, max: usize) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let mut bytes = vec![0; max];
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: max };
    let (mut control, mut passed): (Ancillary, _) = ([0; 8], Vec::new());
    loop {
        // SAFETY: a header of zeros is valid, and every pointer in it is to a local that outlives its use.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
        (message.msg_control, message.msg_controllen) = (control.as_mut_ptr().cast(), size_of::<Ancillary>() as _);
        // SAFETY: as above.
        let got = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) };
        if got < 0 {
            let error = io::Error::last_os_error();
            if error.kind() == io::ErrorKind::Interrupted {
                continue;
            }
            return Err(error);
        }
        bytes.truncate(got as usize);
        // SAFETY: the kernel has filled the control buffer in and says how far; the descriptors in it are new and owned by nobody else.
        unsafe {
            let mut head = libc::CMSG_FIRSTHDR(&raw const message);
            while !head.is_null() {
                if ((*head).cmsg_level, (*head).cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                    let (data, length) = (libc::CMSG_DATA(head), (*head).cmsg_len as usize);
                    let count = (length - libc::CMSG_LEN(0) as usize) / size_of::<c_int>();
                    passed
                        .extend((0..count).map(|n| OwnedFd::from_raw_fd(data.cast::<c_int>().add(n).read_unaligned())));
                }
                head = libc::CMSG_NXTHDR(&raw const message, head);
            }
        }
        return Ok((bytes, passed));
    }
}

/// Two ends of a connection that keeps the bounds of messages, and that tells when the other end is closed.
pub(crate) fn seqpacket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut pair = [0; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: the array has room for both descriptors, which nobody else owns.
    unsafe {
        check(libc::socketpair(libc::AF_UNIX, kind, 0, pair.as_mut_ptr()))?;
        Ok((OwnedFd::from_raw_fd(pair[0]), OwnedFd::from_raw_fd(pair[1])))
    }
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
    // SAFETY: the name is a C string; the new descriptor is owned by nobody else.
    let fd = unsafe { OwnedFd::from_raw_fd(check(libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC))?) };
    let mut file = std::fs::File::from(fd);
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
    // SAFETY: kill has no memory effects.
    unsafe { libc::kill(pid as pid_t, signal) };
}

/// Whether this process may send signals to another.
pub(crate) fn may_signal(pid: u32) -> bool {
    // SAFETY: no signal is sent, and kill has no memory effects.
    match check(unsafe { libc::kill(pid as pid_t, 0) }) {
        Ok(_) => true,
        Err(error) => error.raw_os_error() != Some(libc::EPERM),
    }
}

/// Sends a signal to a process group.
pub(crate) fn kill_group(pgid: u32, signal: c_int) {
    // SAFETY: kill has no memory effects.
    unsafe { libc::kill(-(pgid as pid_t), signal) };
}

/// A descriptor that keeps meaning this very process, also after its number is used again.
pub(crate) fn pidfd_open(pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: the new descriptor is owned by nobody else.
    unsafe { Ok(OwnedFd::from_raw_fd(check(libc::syscall(libc::SYS_pidfd_open, pid as pid_t, 0) as c_int)?)) }
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
    // SAFETY: plain integers.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGCONT) };
}

/// Orphaned descendants of this process become its children instead of init's.
pub(crate) fn set_subreaper() -> io::Result<()> {
    // SAFETY: this prctl takes plain integers.
    check(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }).map(drop)
}

/// Whether the processes of a user are counted in each user namespace by itself, as since Linux 5.14.
pub(crate) fn counts_by_namespace() -> bool {
    // SAFETY: plain data, for which zeros are a value, and a place for the result; the release is a C string then.
    let release = unsafe {
        let mut name: libc::utsname = std::mem::zeroed();
        libc::uname(&raw mut name);
        std::ffi::CStr::from_ptr(name.release.as_ptr()).to_string_lossy().into_owned()
    };
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse::<u32>().unwrap_or(0));
    (numbers.next(), numbers.next()) >= (Some(5), Some(14))
}

pub(crate) fn is_root() -> bool {
    // SAFETY: geteuid cannot fail and touches no memory.
    unsafe { libc::geteuid() == 0 }
}

/// Puts this process before all ordinary ones, or among them again. Its children are ordinary in any case. Needs a privilege, without
/// which nothing happens.
pub(crate) fn set_urgent(urgent: bool) {
    let (policy, priority) = if urgent { (libc::SCHED_FIFO, 1) } else { (libc::SCHED_OTHER, 0) };
    // SAFETY: sched_param is plain data, for which zeros are a value.
    let mut param: libc::sched_param = unsafe { std::mem::zeroed() };
    param.sched_priority = priority;
    // SAFETY: `param` is valid for the call.
    unsafe { libc::sched_setscheduler(0, policy | libc::SCHED_RESET_ON_FORK, &raw const param) };
}

/// A sysconf value that is positive on every Linux.
pub(crate) fn sysconf(name: c_int) -> u64 {
    // SAFETY: sysconf takes and returns plain integers.
    u64::try_from(unsafe { libc::sysconf(name) }).unwrap_or(1).max(1)
}
