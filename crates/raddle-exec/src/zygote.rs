//! A process of one thread that forks others on request, made from a process before that has threads.
//!
//! Whoever needs many processes of this very program, each as fresh as a new one, forks them from here: nothing is loaded, linked or parsed
//! again. What was forked is a *ward* (see `runner/ward.rs`) with a socket of its own to whoever asked for it; the zygote says who has ended
//! and how, and ends what a killed one has left behind. Wards outlive the zygote, and the zygote ends with whoever made it.

use std::{
    collections::{BTreeSet, VecDeque},
    fs, io, mem,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
        unix::{fs::MetadataExt, net::UnixStream},
    },
    panic::{self, AssertUnwindSafe},
    ptr,
    sync::Arc,
    time::Duration,
};

use tokio::{
    io::{Interest, unix::AsyncFd},
    time::timeout,
};

use crate::{
    FencePage, Newborn, Prefork, heap, orphans,
    prefork::LINKS_OF_ONE_THREAD,
    runner::{FAULT, Nest},
    sys::{self, Wait},
    title,
};

/// A zygote, made and not used yet. Dropped, it ends.
#[derive(Debug)]
pub struct Zygote {
    socket: OwnedFd,
    process: Process,
}

/// The zygote's own process. To be dropped after the socket, which ends it: then it is waited for.
#[derive(Debug)]
struct Process(u32);

/// A zygote in use.
#[derive(Debug)]
pub struct Nursery {
    socket: AsyncFd<OwnedFd>,
    /// What came while something else was waited for.
    heard: VecDeque<Told>,
    /// Readable when the zygote is gone. The socket does not tell: those it has forked hold it too.
    gone: AsyncFd<OwnedFd>,
    _process: Process,
}

/// What is told of a process that was forked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    /// The process.
    pub pid: u32,
    /// What.
    pub what: Milestone,
}

/// How far a process has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Milestone {
    /// It is there.
    Forked,
    /// It has exited with this code.
    Exited(i32),
    /// It was ended by this signal.
    Killed(i32),
}

/// How long forking may take: a zygote that does not answer was stopped, or is not one.
const PATIENCE: Duration = Duration::from_secs(5);

/// It ends within a moment, unless somebody has stopped it; then it is left to init.
const REAP_ROUNDS: u32 = 100;
const REAP_PAUSE: Duration = Duration::from_millis(1);

/// The exit code of a process that panicked.
const PANICKED: u8 = 1;

const FORK: u8 = b'F';
const KILL: u8 = b'K';

const FORKED: u8 = 0;
const EXITED: u8 = 1;
const KILLED: u8 = 2;
/// The system gives no process; the number says why.
const REFUSED: u8 = 3;
/// Kind, process, number.
const MESSAGE: usize = 13;

impl Zygote {
    /// Forks a zygote, whose processes each do `work` and exit with what it returns. Refused when this process has more than one thread.
    pub fn fork(work: impl FnMut(Newborn) -> u8) -> io::Result<Self> {
        if fs::metadata("/proc/self/task")?.nlink() != LINKS_OF_ONE_THREAD {
            return Err(io::Error::other("a process with threads cannot be forked safely"));
        }
        let (ours, theirs) = sys::seqpacket_pair()?;
        // SAFETY: there is one thread, so the child is a whole process. It goes on in a function that never returns.
        match sys::check(unsafe { libc::fork() })? {
            0 => {
                drop(ours);
                let code = match serve(theirs, work) {
                    Ok(()) => 0,
                    Err(error) => {
                        eprintln!("raddle: the zygote ends: {error}");
                        FAULT
                    }
                };
                // SAFETY: ends the process without running what the parent has registered for its own end.
                unsafe { libc::_exit(code) }
            }
            pid => Ok(Self { socket: ours, process: Process(pid as u32) }),
        }
    }

    /// Begins to use it, in a runtime.
    pub fn open(self) -> io::Result<Nursery> {
        let Self { socket, process } = self;
        sys::set_nonblocking(socket.as_fd())?;
        let pidfd = sys::pidfd_open(process.0)?;
        // SAFETY: the descriptors are owned by the values that are registered, and nothing can replace them there.
        let (socket, gone) = unsafe {
            let both = Interest::READABLE | Interest::WRITABLE;
            (
                AsyncFd::register_with_interest(socket, both)?,
                AsyncFd::register_with_interest(pidfd, Interest::READABLE)?,
            )
        };
        Ok(Nursery { socket, heard: VecDeque::new(), gone, _process: process })
    }
}

impl Nursery {
    /// Forks a ward. An error means that the zygote is of no use any more, unless its kind is `OutOfMemory` or `WouldBlock`: then the
    /// system gives no process now.
    pub async fn fork(&mut self) -> io::Result<Prefork> {
        let late = |_| io::Error::new(io::ErrorKind::TimedOut, "the zygote does not answer");
        timeout(PATIENCE, self.fork_now()).await.map_err(late)?
    }

    async fn fork_now(&mut self) -> io::Result<Prefork> {
        let (ours, theirs) = UnixStream::pair()?;
        let fence = Arc::new(FencePage::new()?);
        self.ask(FORK, &[theirs.as_fd(), fence.as_fd()]).await?;
        drop(theirs);
        loop {
            match self.receive().await? {
                Ok(Told { pid, what: Milestone::Forked }) => return Ok(Prefork::ward(pid, ours, fence)),
                Ok(told) => self.heard.push_back(told),
                Err(error) => return Err(error),
            }
        }
    }

    /// The next that is told. Cancel-safe. An error means that the zygote is gone, and that nothing more is told of anybody.
    pub async fn next(&mut self) -> io::Result<Told> {
        loop {
            if let Some(told) = self.heard.pop_front() {
                return Ok(told);
            }
            // One that was refused after nobody waited for it any more.
            if let Ok(told) = self.receive().await? {
                return Ok(told);
            }
        }
    }

    /// Sends SIGKILL to all that were forked.
    pub fn kill(&self) {
        let _ = sys::send(self.socket.get_ref().as_fd(), &[KILL]);
    }

    /// Reads on while there is no room to write: the other side may wait for that.
    async fn ask(&mut self, what: u8, passed: &[BorrowedFd<'_>]) -> io::Result<()> {
        loop {
            match sys::send_with(self.socket.get_ref().as_fd(), &[what], passed) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                sent => return sent,
            }
            let told = tokio::select! {
                told = self.receive() => Some(told?),
                room = self.socket.writable() => {
                    room?.clear_ready();
                    None
                }
            };
            self.heard.extend(told.and_then(Result::ok));
        }
    }

    /// What is told next, or why a process could not be forked.
    async fn receive(&self) -> io::Result<io::Result<Told>> {
        loop {
            let mut ready = tokio::select! {
                // What was told before its end is heard.
                biased;
                ready = self.socket.readable() => ready?,
                _ = self.gone.readable() => return Err(io::ErrorKind::UnexpectedEof.into()),
            };
            let mut buf = Vec::new();
            match ready.try_io(|socket| sys::read_some(socket.get_ref().as_fd(), &mut buf, MESSAGE)) {
                Ok(Ok(0)) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(Ok(_)) => return parse(&buf),
                Ok(Err(error)) => return Err(error),
                Err(_would_block) => {}
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        for _ in 0..REAP_ROUNDS {
            if !matches!(sys::try_wait(Some(self.0)), Wait::StillRunning) {
                return;
            }
            std::thread::sleep(REAP_PAUSE);
        }
    }
}

fn parse(message: &[u8]) -> io::Result<io::Result<Told>> {
    let malformed = || io::Error::new(io::ErrorKind::InvalidData, "a message of another length");
    let message: &[u8; MESSAGE] = message.try_into().map_err(|_| malformed())?;
    let [kind, a, b, c, d, number @ ..] = *message;
    let (pid, number) = (u32::from_le_bytes([a, b, c, d]), u64::from_le_bytes(number));
    let what = match kind {
        FORKED => Milestone::Forked,
        EXITED => Milestone::Exited(number as i32),
        KILLED => Milestone::Killed(number as i32),
        REFUSED => return Ok(Err(io::Error::from_raw_os_error(number as i32))),
        _ => return Err(malformed()),
    };
    Ok(Ok(Told { pid, what }))
}

/// Tells, and waits for room. Who is gone need not be told.
fn tell(socket: BorrowedFd<'_>, kind: u8, pid: u32, number: u64) {
    let mut message = [0; MESSAGE];
    message[0] = kind;
    message[1..5].copy_from_slice(&pid.to_le_bytes());
    message[5..].copy_from_slice(&number.to_le_bytes());
    sys::send_whole(socket, &message);
}

/// The zygote's part. Returns when nobody is at the other end any more.
fn serve(socket: OwnedFd, mut work: impl FnMut(Newborn) -> u8) -> io::Result<()> {
    // SAFETY: plain integers. A group of its own: a Ctrl-C at the terminal is for whoever made it.
    sys::check(unsafe { libc::setpgid(0, 0) })?;
    // No id, and so not `raddle-`: who goes through titles takes what follows that for one.
    title::set("raddle zygote");
    // What a killed ward leaves behind comes here.
    sys::set_subreaper()?;
    let nest = Arc::new(Nest::prepare()?);
    let children = child_signals()?;
    heap::fill_holes();
    let mut live = BTreeSet::new();
    loop {
        let pollfd = |fd: &OwnedFd| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let mut fds = [pollfd(&socket), pollfd(&children)];
        sys::poll(&mut fds, None)?;
        if fds[1].revents != 0 {
            let _ = sys::read_some(children.as_fd(), &mut Vec::new(), 4096);
            reap(&socket, &mut live);
        }
        if fds[0].revents == 0 {
            continue;
        }
        let (request, mut passed) = match sys::receive_with(socket.as_fd(), 1) {
            // Whoever made it was killed before it had read all.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(()),
            received => received?,
        };
        let Some(&request) = request.first() else { return Ok(()) };
        match request {
            FORK => {
                let (Some(fence), Some(ward)) = (passed.pop(), passed.pop()) else { continue };
                // SAFETY: there is one thread, so the child is a whole process. It never returns from here.
                match sys::check(unsafe { libc::fork() }) {
                    Ok(0) => {
                        drop((socket, children));
                        become_child(Newborn { socket: ward, fence, nest }, &mut work)
                    }
                    Ok(pid) => {
                        live.insert(pid as u32);
                        tell(socket.as_fd(), FORKED, pid as u32, 0);
                    }
                    Err(error) => {
                        let code = error.raw_os_error().unwrap_or(libc::EAGAIN);
                        tell(socket.as_fd(), REFUSED, 0, code as u64);
                    }
                }
            }
            // Only who waits for a process can be sure of its number.
            KILL => live.iter().for_each(|pid| sys::kill(*pid, libc::SIGKILL)),
            _ => {}
        }
    }
}

fn become_child(newborn: Newborn, work: &mut impl FnMut(Newborn) -> u8) -> ! {
    // SAFETY: plain integers.
    unsafe { libc::setpgid(0, 0) };
    // A panic must not unwind into what its ancestors were doing.
    let code = panic::catch_unwind(AssertUnwindSafe(|| work(newborn))).unwrap_or(PANICKED);
    // SAFETY: ends the process without running what its ancestors have registered for their own end.
    unsafe { libc::_exit(code.into()) }
}

fn reap(socket: &OwnedFd, live: &mut BTreeSet<u32>) {
    while let Wait::Reaped(reaped) = sys::try_wait(None) {
        if !live.remove(&reaped.pid) {
            // An orphan that has ended by itself.
            continue;
        }
        let status = reaped.status;
        let (kind, number) = if libc::WIFSIGNALED(status) {
            (KILLED, libc::WTERMSIG(status))
        } else {
            (EXITED, libc::WEXITSTATUS(status))
        };
        if (kind, number) != (EXITED, 0) {
            // It may not have ended all that it ran, which was given to us when it died.
            let wards: Vec<u32> = live.iter().copied().collect();
            orphans::reap_orphans(&wards);
        }
        tell(socket.as_fd(), kind, reaped.pid, number as u64);
    }
}

/// A descriptor that tells of children that have ended.
fn child_signals() -> io::Result<OwnedFd> {
    // SAFETY: signal sets are plain data; every pointer is to a local that outlives its call, and the descriptor is owned by nobody else.
    unsafe {
        let mut wanted: libc::sigset_t = mem::zeroed();
        libc::sigemptyset(&raw mut wanted);
        libc::sigaddset(&raw mut wanted, libc::SIGCHLD);
        sys::check(libc::sigprocmask(libc::SIG_BLOCK, &raw const wanted, ptr::null_mut()))?;
        let fd = sys::check(libc::signalfd(-1, &raw const wanted, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK))?;
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_as_they_were_sent_and_bounds_are_kept() {
        let (ours, theirs) = sys::seqpacket_pair().unwrap();
        let sent = [(FORKED, 0), (EXITED, 3), (KILLED, 9)];
        sent.iter().for_each(|(kind, number)| tell(theirs.as_fd(), *kind, 7, *number));
        tell(theirs.as_fd(), REFUSED, 0, libc::EAGAIN as u64);
        sys::send_whole(theirs.as_fd(), b"x");
        drop(theirs);
        let next = || {
            let mut buf = Vec::new();
            sys::read_some(ours.as_fd(), &mut buf, 100).unwrap();
            buf
        };
        for what in [Milestone::Forked, Milestone::Exited(3), Milestone::Killed(9)] {
            assert_eq!(parse(&next()).unwrap().unwrap(), Told { pid: 7, what });
        }
        assert_eq!(parse(&next()).unwrap().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert!(parse(&next()).is_err());
        assert_eq!(next(), b"", "the other end is closed");
    }

    #[test]
    fn a_process_with_threads_makes_no_zygote() {
        // The harness has one for each test.
        std::thread::scope(|scope| {
            let (stop, stopped) = std::sync::mpsc::channel::<()>();
            scope.spawn(move || stopped.recv());
            assert!(Zygote::fork(|_| 0).is_err());
            drop(stop);
        });
    }
}
