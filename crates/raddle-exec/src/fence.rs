//! The fence: how a runner learns that its worker's lease has run out, although the worker may be stopped or stuck.
//!
//! A worker that renews its lease writes the new deadline to a page of memory that its runners share. A runner kills its task
//! when the deadline passes, so that no attempt goes on that another worker may already be running again. Nothing here
//! decides what a lease is or how long it lasts.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    ptr::NonNull,
    sync::atomic::{AtomicU64, Ordering},
};

use crate::sys;

const SIZE: usize = 4096;

/// A page shared between a worker and its runners. It holds one number: the reading of `CLOCK_MONOTONIC`, in nanoseconds, until
/// which the worker's lease holds; 0 means for ever.
#[derive(Debug)]
pub struct FencePage {
    fd: OwnedFd,
    page: NonNull<AtomicU64>,
}

// SAFETY: the page is only ever accessed through the atomic in it, and unmapped when its sole owner is dropped.
unsafe impl Send for FencePage {}
// SAFETY: as above.
unsafe impl Sync for FencePage {}

impl FencePage {
    /// A page without a deadline.
    pub fn new() -> io::Result<Self> {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: the name is a C string; the new descriptor is owned by nobody else.
        let fd = unsafe { OwnedFd::from_raw_fd(sys::check(libc::memfd_create(c"raddle-fence".as_ptr(), flags))?) };
        File::from(fd.try_clone()?).set_len(SIZE as u64)?;
        // A page that could be cut short would turn a read of the deadline into SIGBUS.
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: plain integers to fcntl.
        sys::check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals) })?;
        Self::map(fd, libc::PROT_READ | libc::PROT_WRITE)
    }

    /// The runner's view of the page behind `fd`.
    pub(crate) fn from_fd(fd: OwnedFd) -> io::Result<Self> {
        // SAFETY: plain integers to fcntl.
        let seals = sys::check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) })?;
        if seals & libc::F_SEAL_SHRINK == 0 || File::from(fd.try_clone()?).metadata()?.len() != SIZE as u64 {
            return Err(io::Error::other("not a fence page"));
        }
        Self::map(fd, libc::PROT_READ)
    }

    /// A view of the same page that can be written to: for a ward that renews its lease itself.
    pub(crate) fn writable(&self) -> io::Result<Self> {
        Self::map(self.fd.try_clone()?, libc::PROT_READ | libc::PROT_WRITE)
    }

    fn map(fd: OwnedFd, protection: libc::c_int) -> io::Result<Self> {
        // SAFETY: a fresh mapping at an address of the kernel's choice aliases nothing of ours.
        let page = unsafe { libc::mmap(std::ptr::null_mut(), SIZE, protection, libc::MAP_SHARED, fd.as_raw_fd(), 0) };
        if page == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let page = NonNull::new(page.cast()).ok_or_else(|| io::Error::other("mapped at address zero"))?;
        Ok(Self { fd, page })
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
        // SAFETY: the mapping is page-aligned, at least eight bytes long, and lives as long as `self`.
        unsafe { self.page.as_ref() }
    }
}

impl AsFd for FencePage {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for FencePage {
    fn drop(&mut self) {
        // SAFETY: this is the mapping made in `map`, and nothing can refer to it any more.
        unsafe { libc::munmap(self.page.as_ptr().cast(), SIZE) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_is_seen_through_the_other_mapping() {
        let page = FencePage::new().unwrap();
        let view = FencePage::from_fd(page.fd.try_clone().unwrap()).unwrap();
        assert_eq!(view.deadline(), 0);
        page.extend_to(42);
        assert_eq!(view.deadline(), 42);
    }

    #[test]
    fn another_file_is_no_fence() {
        assert!(FencePage::from_fd(File::open("/dev/null").unwrap().into()).is_err());
    }
}
