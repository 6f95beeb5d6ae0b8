//! A page of memory that processes share: an array of atomic numbers.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    ptr::NonNull,
    sync::atomic::AtomicU64,
};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, memfd_create};

const SIZE: usize = 4096;
/// Number of cells in a page.
pub(crate) const CELLS: usize = SIZE / size_of::<AtomicU64>();

/// A page shared with every process that has its descriptor. All cells start at 0.
#[derive(Debug)]
pub(crate) struct SharedPage {
    fd: OwnedFd,
    page: NonNull<AtomicU64>,
}

// SAFETY: the page is only accessed through the atomics in it, and unmapped when its only owner is
// dropped.
unsafe impl Send for SharedPage {}
// SAFETY: as above.
unsafe impl Sync for SharedPage {}

impl SharedPage {
    /// Creates a page.
    pub(crate) fn new() -> io::Result<Self> {
        let fd = memfd_create(
            c"raddle-page",
            MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
        )?;
        File::from(fd.try_clone()?).set_len(SIZE as u64)?;
        // A page that could be truncated would turn a read into SIGBUS.
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Self::map(fd, libc::PROT_READ | libc::PROT_WRITE)
    }

    /// Maps the page behind `fd`. Cells may be written only if `is_writable` is set.
    pub(crate) fn from_fd(fd: OwnedFd, is_writable: bool) -> io::Result<Self> {
        let seals = fcntl_get_seals(&fd)?;
        if !seals.contains(SealFlags::SHRINK)
            || File::from(fd.try_clone()?).metadata()?.len() != SIZE as u64
        {
            return Err(io::Error::other("not a page that is shared"));
        }
        Self::map(
            fd,
            libc::PROT_READ | if is_writable { libc::PROT_WRITE } else { 0 },
        )
    }

    fn map(fd: OwnedFd, protection: libc::c_int) -> io::Result<Self> {
        // SAFETY: a new mapping at an address that the kernel chooses aliases nothing.
        let page = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                SIZE,
                protection,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                0,
            )
        };
        if page == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let page =
            NonNull::new(page.cast()).ok_or_else(|| io::Error::other("mapped at address zero"))?;
        Ok(Self { fd, page })
    }

    /// One cell.
    pub(crate) fn cell(&self, index: usize) -> &AtomicU64 {
        assert!(index < CELLS, "a page has {CELLS} numbers");
        // SAFETY: the mapping is page-aligned, holds `CELLS` numbers, and lives as long as `self`.
        unsafe { self.page.add(index).as_ref() }
    }
}

impl AsFd for SharedPage {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for SharedPage {
    fn drop(&mut self) {
        // SAFETY: this is the mapping made in `map`, and no reference to it is left.
        unsafe { libc::munmap(self.page.as_ptr().cast(), SIZE) };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn shares_writes_between_mappings() {
        let page = SharedPage::new().unwrap();
        let view = SharedPage::from_fd(page.fd.try_clone().unwrap(), false).unwrap();
        assert_eq!(view.cell(CELLS - 1).load(Ordering::Acquire), 0);
        page.cell(CELLS - 1).store(42, Ordering::Release);
        assert_eq!(view.cell(CELLS - 1).load(Ordering::Acquire), 42);
    }

    #[test]
    fn rejects_other_files() {
        assert!(SharedPage::from_fd(File::open("/dev/null").unwrap().into(), true).is_err());
    }
}
