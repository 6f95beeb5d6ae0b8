//! A ward that waits to be used: see [`crate::Zygote`].

use std::{
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixStream,
    },
    sync::{Arc, Mutex, PoisonError},
};

use raddle_core::Tid;

use crate::{FencePage, frame, sys, tree};

/// A ward that the first caller of [`Runner::take_over`](crate::Runner::take_over) gets. Dropped unused, it is dismissed.
#[derive(Clone, Debug)]
pub struct Prefork {
    waiting: Arc<Mutex<Option<Forked>>>,
    fence: Arc<FencePage>,
    /// The process, and when it began.
    process: (u32, Option<u64>),
}

/// The ward itself, as its keeper sees it.
#[derive(Debug)]
pub(crate) struct Forked {
    pid: u32,
    /// Absent once another owner has it.
    socket: Option<UnixStream>,
}

/// A process of one thread has three links to its folder of threads: the folder, its own dot, and the thread.
pub(crate) const LINKS_OF_ONE_THREAD: u64 = 3;

impl Prefork {
    /// A ward, which is a child of its zygote.
    pub(crate) fn ward(pid: u32, socket: UnixStream, fence: Arc<FencePage>) -> Self {
        let waiting = Arc::new(Mutex::new(Some(Forked { pid, socket: Some(socket) })));
        Self { waiting, fence, process: (pid, tree::born(pid)) }
    }

    /// The process that is the worker, and when it began, as [`born`](crate::born) tells.
    pub fn worker_process(&self) -> (u32, Option<u64>) {
        self.process
    }

    /// Tells a ward which worker it is, unless it is at work already.
    pub fn name(&self, worker: Tid, name: &str) {
        if let Some(socket) = self.lock().as_ref().and_then(|forked| forked.socket.as_ref()) {
            let mut frame = Vec::new();
            frame::put_name(&mut frame, worker, name);
            // There is room, for nothing was sent before. One that is gone need not be told.
            let _ = sys::send(socket.as_fd(), &frame);
        }
    }

    /// The fence that the runner looks at, as long as the runner has not been taken.
    pub fn fence(&self) -> Option<Arc<FencePage>> {
        self.lock().is_some().then(|| Arc::clone(&self.fence))
    }

    /// Whether the runner waits to be taken, is still there, and has nothing to say.
    pub fn is_waiting(&self) -> bool {
        self.lock()
            .as_ref()
            .and_then(|forked| forked.socket.as_ref())
            .is_some_and(|socket| sys::is_quiet(socket.as_fd()))
    }

    /// Whether it has been taken.
    pub fn is_taken(&self) -> bool {
        self.lock().is_none()
    }

    /// Takes a ward back that was taken, and lets it rest.
    pub(crate) fn put_back(&self, pid: u32, socket: UnixStream) {
        let mut frame = Vec::new();
        frame::put_rest(&mut frame);
        // One that was not told is let go of.
        if sys::send(socket.as_fd(), &frame).is_ok_and(|sent| sent == frame.len()) {
            *self.lock() = Some(Forked { pid, socket: Some(socket) });
        }
    }

    /// The process and its socket.
    pub(crate) fn take(&self) -> Option<(u32, UnixStream)> {
        let mut forked = self.lock().take()?;
        forked.socket.take().map(|socket| (forked.pid, socket))
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

impl Drop for Forked {
    fn drop(&mut self) {
        if let Some(socket) = &self.socket {
            dismiss(socket.as_fd());
        }
    }
}
