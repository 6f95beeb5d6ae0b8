//! The marks of a process that somebody keeps alive: that its loop turns, how much it has begun, and until when what it runs has to be over.
//!
//! It writes them to a page of memory that its keeper shares, and its keeper looks there. So a process that is stopped, or whose loop is
//! blocked, does not have to cooperate to be noticed; and to look at five hundred of them takes no system call.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::atomic::Ordering,
    time::Duration,
};

use crate::page::{CELLS, SharedPage};

/// The page. Its first number counts turns of the loop, its second attempts; the others say of a slot each by when its attempt has to be
/// over, on the monotonic clock in nanoseconds, or 0.
#[derive(Debug)]
pub struct MarkPage(SharedPage);

const TURNS: usize = 0;
const BEGUN: usize = 1;
const FIRST_SLOT: usize = 2;

impl MarkPage {
    /// A page for one process.
    pub fn new() -> io::Result<Self> {
        SharedPage::new().map(Self)
    }

    /// The page that this process was started with, as its standard input, which is empty from then on.
    pub fn of_stdin() -> io::Result<Self> {
        let fd = io::stdin().as_fd().try_clone_to_owned()?;
        let page = SharedPage::from_fd(fd, true)?;
        let nothing = OwnedFd::from(File::open("/dev/null")?);
        // SAFETY: both are open, and nothing else of this process owns its standard input.
        crate::sys::check(unsafe { libc::dup2(std::os::fd::AsRawFd::as_raw_fd(&nothing), libc::STDIN_FILENO) })?;
        Ok(Self(page))
    }

    /// The loop has turned.
    pub fn mark(&self) {
        self.0.cell(TURNS).fetch_add(1, Ordering::Relaxed);
    }

    /// How often it has.
    pub fn turns(&self) -> u64 {
        self.0.cell(TURNS).load(Ordering::Relaxed)
    }

    /// So many attempts have begun.
    pub fn set_begun(&self, attempts: u64) {
        self.0.cell(BEGUN).store(attempts, Ordering::Relaxed);
    }

    /// How many have.
    pub fn begun(&self) -> u64 {
        self.0.cell(BEGUN).load(Ordering::Relaxed)
    }

    /// What runs in a slot has to be over by then, if it has to. Slots beyond what a page has room for are not looked at.
    pub fn set_due(&self, slot: usize, due: Option<Duration>) {
        if FIRST_SLOT + slot < CELLS {
            let nanos = due.map_or(0, |due| due.as_nanos() as u64);
            self.0.cell(FIRST_SLOT + slot).store(nanos, Ordering::Relaxed);
        }
    }

    /// When the first of what runs in so many slots has to be over, if something has to.
    pub fn due(&self, slots: usize) -> Option<Duration> {
        let cells = (FIRST_SLOT..CELLS).take(slots).map(|index| self.0.cell(index).load(Ordering::Relaxed));
        cells.filter(|due| *due != 0).min().map(Duration::from_nanos)
    }

    /// The present reading of the clock that it has times of.
    pub fn clock_now() -> Duration {
        crate::sys::now()
    }
}

impl AsFd for MarkPage {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_to_be_over_first_is_found() {
        let page = MarkPage::new().unwrap();
        let at = Duration::from_secs;
        assert_eq!(page.due(4), None);
        page.set_due(3, Some(at(5)));
        page.set_due(1, Some(at(7)));
        assert_eq!((page.due(4), page.due(3), page.due(1)), (Some(at(5)), Some(at(7)), None));
        page.set_due(3, None);
        page.set_due(CELLS, Some(at(1)));
        assert_eq!(page.due(usize::MAX), Some(at(7)));
    }
}
