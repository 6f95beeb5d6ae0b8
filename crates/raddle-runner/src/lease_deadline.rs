//! `LeaseDeadlinePage`: shows a runner when its worker's lease ends, even if the worker is stopped
//! or hangs.
//!
//! A worker that renews its lease writes the new deadline to a page of memory that it shares with
//! its runners. A runner kills its attempt when the deadline passes, so that no attempt overlaps
//! with its successor on another worker. Other modules decide what a lease is and how long it
//! lasts.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::atomic::{AtomicU64, Ordering},
};

use crate::{shared_page::SharedPage, sys};

/// A page shared between a worker and its runners. It holds one number: the reading of
/// `CLOCK_MONOTONIC`, in nanoseconds, at which the worker's lease ends. 0 means never.
#[derive(Debug)]
pub struct LeaseDeadlinePage(SharedPage);

impl LeaseDeadlinePage {
    /// Creates a page without a deadline.
    pub fn new() -> io::Result<Self> {
        SharedPage::new().map(Self)
    }

    /// Maps the page behind `fd` read-only, for the runner.
    pub(crate) fn from_fd(fd: OwnedFd) -> io::Result<Self> {
        SharedPage::from_fd(fd, false).map(Self)
    }

    /// Sets the deadline to this reading of [`clock_now`](Self::clock_now).
    pub fn extend_to(&self, deadline_ns: u64) {
        self.cell().store(deadline_ns, Ordering::Release);
    }

    /// Moves the deadline by this much.
    pub fn extend_by(&self, nanos: u64) {
        self.extend_to(self.deadline() + nanos);
    }

    /// Whether the deadline has passed.
    pub fn has_passed(&self) -> bool {
        Self::clock_now() >= self.deadline()
    }

    /// Current reading of `CLOCK_MONOTONIC` in nanoseconds.
    pub fn clock_now() -> u64 {
        sys::now().as_nanos() as u64
    }

    /// The deadline. 0 means none.
    pub(crate) fn deadline(&self) -> u64 {
        self.cell().load(Ordering::Acquire)
    }

    fn cell(&self) -> &AtomicU64 {
        self.0.cell(0)
    }
}

impl AsFd for LeaseDeadlinePage {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
