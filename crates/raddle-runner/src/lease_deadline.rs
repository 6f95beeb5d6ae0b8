//! The fence: how a runner learns that its worker's lease has run out, although the worker may be stopped or stuck.
//!
//! A worker that renews its lease writes the new deadline to a page of memory that its runners share. A runner kills its task
//! when the deadline passes, so that no attempt goes on that another worker may already be running again. Nothing here
//! decides what a lease is or how long it lasts.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::atomic::{AtomicU64, Ordering},
};

use crate::{shared_page::SharedPage, sys};

/// A page shared between a worker and its runners. It holds one number: the reading of `CLOCK_MONOTONIC`, in nanoseconds, until
/// which the worker's lease holds; 0 means for ever.
#[derive(Debug)]
pub struct LeaseDeadlinePage(SharedPage);

impl LeaseDeadlinePage {
    /// A page without a deadline.
    pub fn new() -> io::Result<Self> {
        SharedPage::new().map(Self)
    }

    /// The runner's view of the page behind `fd`.
    pub(crate) fn from_fd(fd: OwnedFd) -> io::Result<Self> {
        SharedPage::from_fd(fd, false).map(Self)
    }

    /// The lease holds until this reading of [`clock_now`](Self::clock_now).
    pub fn extend_to(&self, deadline_ns: u64) {
        self.cell().store(deadline_ns, Ordering::Release);
    }

    /// The lease holds for that much longer.
    pub fn extend_by(&self, nanos: u64) {
        self.extend_to(self.deadline() + nanos);
    }

    /// Whether the lease is over.
    pub fn has_passed(&self) -> bool {
        Self::clock_now() >= self.deadline()
    }

    /// The present reading of `CLOCK_MONOTONIC` in nanoseconds.
    pub fn clock_now() -> u64 {
        sys::now().as_nanos() as u64
    }

    /// The deadline; 0 means none.
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
