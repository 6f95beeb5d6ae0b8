//! A runner forked from this process before it has threads, for a process that knows at its start that it will need one.
//!
//! A ward is one too, forked by a zygote instead: see [`crate::Zygote`].
//!
//! Starting a runner means to start this very program again; forking one from a process that has just begun costs a fifth of that.
//! It is only sound while there is one thread: the child of a threaded process inherits locks that nobody will ever release.

use std::{
    fs, io,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::{fs::MetadataExt, net::UnixStream},
    },
    sync::{Arc, Mutex, PoisonError},
};

use raddle_core::Tid;

use crate::{Call, FencePage, frame, orphans, processors::Processors, runner, sys, tree};

/// A runner that waits to be used, by whoever asks first. Dropped unused, it is ended and waited for.
#[derive(Clone, Debug)]
pub struct Prefork {
    waiting: Arc<Mutex<Option<Forked>>>,
    fence: Arc<FencePage>,
    strangers: Arc<[u32]>,
    /// The process, if it is a ward, and when it began.
    ward: Option<(u32, Option<u64>)>,
}

/// The runner itself, as its parent sees it.
#[derive(Debug)]
pub(crate) struct Forked {
    pub(crate) pid: u32,
    pub(crate) socket: UnixStream,
    pub(crate) is_ward: bool,
}

/// No process has this number.
const NOBODY: u32 = 0;

/// A process of one thread has three links to its folder of threads: the folder, its own dot, and the thread.
pub(crate) const LINKS_OF_ONE_THREAD: u64 = 3;

impl Prefork {
    /// Forks a runner, which runs the functions of `call` as well as commands. Refused when this process has more than one thread.
    pub fn new(call: Option<Call>) -> io::Result<Self> {
        if fs::metadata("/proc/self/task")?.nlink() != LINKS_OF_ONE_THREAD {
            return Err(io::Error::other("a process with threads cannot be forked safely"));
        }
        let strangers = orphans::children().into();
        let fence = Arc::new(FencePage::new()?);
        let (ours, theirs) = UnixStream::pair()?;
        // One with functions forks more while it is set up, who would be confined with it.
        let allowed = Processors::allowed().filter(|_| call.is_none());
        // SAFETY: there is one thread, so the child is a whole process. It goes on in a function that never returns.
        match sys::check(unsafe { libc::fork() })? {
            0 => {
                drop(ours);
                become_runner(&theirs, &fence, call, allowed)
            }
            pid => {
                let pid = pid as u32;
                // Many systems begin a fork where its parent runs, which has much to do, and let the other processors idle.
                if let Some(others) = allowed.as_ref().and_then(Processors::others) {
                    others.confine(pid);
                }
                let waiting = Arc::new(Mutex::new(Some(Forked { pid, socket: ours, is_ward: false })));
                Ok(Self { waiting, fence, strangers, ward: None })
            }
        }
    }

    /// A ward, which is a child of its zygote.
    pub(crate) fn ward(pid: u32, socket: UnixStream, fence: Arc<FencePage>) -> Self {
        let waiting = Arc::new(Mutex::new(Some(Forked { pid, socket, is_ward: true })));
        Self { waiting, fence, strangers: Arc::default(), ward: Some((pid, tree::born(pid))) }
    }

    /// The process that is the worker, if that is not this one: a runner that was forked to be one. And when it began, as [`born`](crate::born) tells.
    pub fn worker_process(&self) -> Option<(u32, Option<u64>)> {
        self.ward
    }

    /// The process of a runner that waits to be taken and is a child of this process.
    pub fn runner_process(&self) -> Option<u32> {
        self.lock().as_ref().filter(|forked| !forked.is_ward).map(|forked| forked.pid)
    }

    /// Tells a ward which worker it is, unless it is at work already.
    pub fn name(&self, worker: Tid, name: &str) {
        if let Some(forked) = self.lock().as_ref().filter(|forked| forked.is_ward) {
            let mut frame = Vec::new();
            frame::put_name(&mut frame, worker, name);
            // There is room, for nothing was sent before. One that is gone need not be told.
            let _ = sys::send(forked.socket.as_fd(), &frame);
        }
    }

    /// The fence that the runner looks at, as long as the runner has not been taken.
    pub fn fence(&self) -> Option<Arc<FencePage>> {
        self.lock().is_some().then(|| Arc::clone(&self.fence))
    }

    /// The children that this process had before.
    pub fn strangers(&self) -> Arc<[u32]> {
        Arc::clone(&self.strangers)
    }

    /// Whether the runner waits to be taken, is still there, and has nothing to say.
    pub fn is_waiting(&self) -> bool {
        self.lock().as_ref().is_some_and(|forked| sys::is_quiet(forked.socket.as_fd()))
    }

    /// Whether it has been taken.
    pub fn is_taken(&self) -> bool {
        self.lock().is_none()
    }

    /// Takes a ward back that was taken, and lets it rest.
    pub(crate) fn put_back(&self, ward: Forked) {
        let mut frame = Vec::new();
        frame::put_rest(&mut frame);
        // One that was not told is let go of.
        if sys::send(ward.socket.as_fd(), &frame).is_ok_and(|sent| sent == frame.len()) {
            *self.lock() = Some(ward);
        }
    }

    pub(crate) fn take(&self) -> Option<Forked> {
        self.lock().take()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Forked>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A ward is told that it is not needed. One that finds its socket closed without that takes its keeper for killed.
pub(crate) fn dismiss(socket: BorrowedFd<'_>) {
    let mut frame = Vec::new();
    frame::put_leave(&mut frame);
    let _ = sys::send(socket, &frame);
}

impl Forked {
    /// It has another owner, who lets go of it.
    pub(crate) fn forget(mut self) {
        (self.is_ward, self.pid) = (false, NOBODY);
    }
}

impl Drop for Forked {
    fn drop(&mut self) {
        if self.is_ward {
            dismiss(self.socket.as_fd());
        } else if self.pid != NOBODY {
            // It has nothing to run, and is ours to wait for: process 1 of a container may not do so.
            sys::kill(self.pid, libc::SIGKILL);
            // SAFETY: a child of this process that nobody has waited for; how it ended is not asked.
            unsafe { libc::waitpid(self.pid as i32, std::ptr::null_mut(), 0) };
        }
    }
}

/// The child's part: from here on it is a runner like any other.
fn become_runner(socket: &UnixStream, fence: &FencePage, call: Option<Call>, allowed: Option<Processors>) -> ! {
    let set_up = || -> io::Result<()> {
        // SAFETY: plain integers. A group of its own: a Ctrl-C at the terminal is for the parent, who passes it on.
        sys::check(unsafe { libc::setpgid(0, 0) })?;
        sys::dup_onto(socket.as_fd(), 0)?;
        sys::dup_onto(fence.as_fd(), 1)
    };
    let code = match set_up() {
        Ok(()) => runner::forked_main(call, allowed),
        Err(_) => runner::NOT_SET_UP,
    };
    // SAFETY: ends the process without running what the parent has registered for its own end.
    unsafe { libc::_exit(code) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_not_needed_is_waited_for() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = child.id();
        let (socket, _) = UnixStream::pair().unwrap();
        drop(Forked { pid, socket, is_ward: false });
        assert_eq!(tree::born(pid), None, "nothing of it is left");
        assert!(child.try_wait().is_err(), "nor to be waited for");
        let (socket, _) = UnixStream::pair().unwrap();
        // Nobody is ended who has another owner.
        Forked { pid: std::process::id(), socket, is_ward: false }.forget();
    }

    #[test]
    fn who_cannot_be_set_up_says_that_nothing_was_begun() {
        let (socket, _ours) = UnixStream::pair().unwrap();
        let fence = FencePage::new().unwrap();
        // SAFETY: between fork and exit the child makes system calls alone, because it may have no descriptors.
        let pid = match sys::check(unsafe { libc::fork() }).unwrap() {
            0 => {
                let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
                // SAFETY: the limits are only read.
                unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const none) };
                become_runner(&socket, &fence, None, None)
            }
            pid => pid,
        };
        let mut status = 0;
        // SAFETY: a child of this process that nobody has waited for.
        assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
        assert_eq!(libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status)), Some(runner::NOT_SET_UP));
    }
}
