//! The marks of a process that somebody keeps alive: that its loop turns, how much it has begun, and until when what it runs has to be over.
//!
//! It writes them to a page of memory that its keeper shares, and its keeper looks there. So a process that is stopped, or whose loop is
//! blocked, does not have to cooperate to be noticed; and to look at five hundred of them takes no system call.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, BorrowedFd},
    sync::atomic::Ordering,
    time::Duration,
};

use raddle_model::Tid;

use crate::shared_page::{CELLS, SharedPage};

/// The page. Its first number counts turns of the loop, its second attempts; the others are two for each slot: by when its attempt has to be
/// over, on the monotonic clock in nanoseconds, or 0, or how much is left to it, while it is held; and of which task that is.
#[derive(Debug)]
pub struct ProgressPage(SharedPage);

const TURNS: usize = 0;
const BEGUN: usize = 1;
const FIRST_SLOT: usize = 2;
const SLOTS: usize = (CELLS - FIRST_SLOT) / 2;
/// Marks a time as one that does not run on at present. No clock has such a reading.
const HELD: u64 = 1 << 63;

impl ProgressPage {
    /// A page for one process.
    pub fn new() -> io::Result<Self> {
        SharedPage::new().map(Self)
    }

    /// The page that this process was started with, as its standard input, which is empty from then on.
    pub fn of_stdin() -> io::Result<Self> {
        let fd = io::stdin().as_fd().try_clone_to_owned()?;
        let page = SharedPage::from_fd(fd, true)?;
        rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
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

    /// The attempt that runs in a slot has to be over by then, if it has to. Slots beyond what a page has room for are not looked at.
    pub fn set_due(&self, slot: usize, due: Option<(Tid, Duration)>) {
        if slot < SLOTS {
            let (task, nanos) =
                due.map_or((0, 0), |(tid, due)| (tid.as_u64(), due.as_nanos() as u64));
            let index = FIRST_SLOT + 2 * slot;
            self.0.cell(index + 1).store(task, Ordering::Relaxed);
            // Whoever sees the time sees whose it is.
            self.0.cell(index).store(nanos, Ordering::Release);
        }
    }

    /// The attempt in a slot stands still at `now`, or goes on. While it does stand still it has to be over by no time; then it has as much left as before.
    pub fn hold(&self, slot: usize, is_held: bool, now: Duration) {
        if slot >= SLOTS {
            return;
        }
        let now = now.as_nanos() as u64;
        let turn = |due: u64| match (due & HELD != 0, is_held) {
            (false, true) if due != 0 => Some(due.saturating_sub(now) | HELD),
            (true, false) => Some((due & !HELD) + now),
            _ => None,
        };
        // Refused only where there is nothing to turn.
        let _ = self.0.cell(FIRST_SLOT + 2 * slot).fetch_update(
            Ordering::AcqRel,
            Ordering::Acquire,
            turn,
        );
    }

    /// When the first of what runs in so many slots has to be over, if something has to.
    pub fn due(&self, slots: usize) -> Option<Duration> {
        self.slots(slots).map(|(due, _)| due).min()
    }

    /// The tasks that should be over by `now`, of so many slots.
    pub fn overdue(&self, slots: usize, now: Duration) -> Vec<Tid> {
        self.slots(slots)
            .filter(|(due, _)| *due <= now)
            .filter_map(|(_, task)| Tid::from_u64(task))
            .collect()
    }

    fn slots(&self, slots: usize) -> impl Iterator<Item = (Duration, u64)> {
        let slot = |slot: usize| {
            let (due, index) = (
                self.0.cell(FIRST_SLOT + 2 * slot).load(Ordering::Acquire),
                FIRST_SLOT + 2 * slot + 1,
            );
            (due, self.0.cell(index).load(Ordering::Relaxed))
        };
        let dues = (0..slots.min(SLOTS))
            .map(slot)
            .filter(|(due, _)| *due != 0 && due & HELD == 0);
        dues.map(|(due, task)| (Duration::from_nanos(due), task))
    }

    /// The present reading of the clock that it has times of.
    pub fn clock_now() -> Duration {
        crate::sys::now()
    }
}

impl AsFd for ProgressPage {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_to_be_over_first_is_found() {
        let page = ProgressPage::new().unwrap();
        let at = Duration::from_secs;
        let tid = |number| Tid::from_u64(1_800_000_000_000_000_000 + number).unwrap();
        let some = |number| Some((tid(number), at(number)));
        assert_eq!(page.due(4), None);
        page.set_due(3, some(5));
        page.set_due(1, some(7));
        assert_eq!(
            (page.due(4), page.due(3), page.due(1)),
            (Some(at(5)), Some(at(7)), None)
        );
        assert_eq!(
            (page.overdue(4, at(5)), page.overdue(4, at(9))),
            (vec![tid(5)], vec![tid(7), tid(5)])
        );
        page.hold(3, true, at(2));
        page.hold(3, true, at(3));
        assert_eq!(
            (page.due(4), page.overdue(4, at(6))),
            (Some(at(7)), vec![]),
            "it stands still"
        );
        page.hold(3, false, at(12));
        page.hold(3, false, at(13));
        assert_eq!(
            page.overdue(4, at(15)),
            [tid(7), tid(5)],
            "it had three seconds left, and has them now"
        );
        assert_eq!(page.overdue(4, at(14)), [tid(7)]);
        page.hold(0, true, at(20));
        page.hold(CELLS, true, at(20));
        page.hold(3, true, at(20));
        page.set_due(3, None);
        page.hold(3, false, at(21));
        page.set_due(CELLS, some(1));
        assert_eq!(page.due(usize::MAX), Some(at(7)));
    }
}
