//! `ProgressPage`: shows a supervisor that a process makes progress: turns of its loop, attempts
//! started, and the deadlines of its running attempts.
//!
//! The process writes to a page of memory that it shares with its supervisor. The supervisor
//! therefore notices a process that is stopped or whose loop is blocked without its cooperation,
//! and checks five hundred of them without a system call.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, BorrowedFd},
    sync::atomic::Ordering,
    time::Duration,
};

use raddle_model::Tid;

use crate::shared_page::{CELLS, SharedPage};

/// The page. Cell 0 counts turns of the loop, cell 1 attempts. Two cells per slot follow: the
/// deadline of the slot's attempt on the monotonic clock in nanoseconds (0: none; with `PAUSED`:
/// the time left), and the id of its task.
#[derive(Debug)]
pub struct ProgressPage(SharedPage);

const TURNS: usize = 0;
const ATTEMPTS: usize = 1;
const FIRST_SLOT: usize = 2;
const SLOTS: usize = (CELLS - FIRST_SLOT) / 2;
/// Flag of a deadline that is paused. No clock reading has this bit.
const PAUSED: u64 = 1 << 63;

impl ProgressPage {
    /// Creates a page for one process.
    pub fn new() -> io::Result<Self> {
        SharedPage::new().map(Self)
    }

    /// Maps the page that this process received as its standard input, and replaces the input by
    /// `/dev/null`.
    pub fn from_stdin() -> io::Result<Self> {
        let fd = io::stdin().as_fd().try_clone_to_owned()?;
        let page = SharedPage::from_fd(fd, true)?;
        rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
        Ok(Self(page))
    }

    /// Counts a turn of the loop.
    pub fn count_turn(&self) {
        self.0.cell(TURNS).fetch_add(1, Ordering::Relaxed);
    }

    /// Number of turns of the loop.
    pub fn turns(&self) -> u64 {
        self.0.cell(TURNS).load(Ordering::Relaxed)
    }

    /// Sets the number of attempts that have started.
    pub fn set_attempts_started(&self, attempts: u64) {
        self.0.cell(ATTEMPTS).store(attempts, Ordering::Relaxed);
    }

    /// Number of attempts that have started.
    pub fn attempts_started(&self) -> u64 {
        self.0.cell(ATTEMPTS).load(Ordering::Relaxed)
    }

    /// Sets or clears the deadline of the attempt in a slot. Slots beyond the size of the page are
    /// not monitored.
    pub fn set_deadline(&self, slot: usize, deadline: Option<(Tid, Duration)>) {
        if slot < SLOTS {
            let (task, nanos) = deadline.map_or((0, 0), |(tid, deadline)| {
                (tid.as_u64(), deadline.as_nanos() as u64)
            });
            let index = FIRST_SLOT + 2 * slot;
            self.0.cell(index + 1).store(task, Ordering::Relaxed);
            // Release: a reader that sees the time also sees the task.
            self.0.cell(index).store(nanos, Ordering::Release);
        }
    }

    /// Pauses or resumes the deadline of a slot at `now`. A paused attempt has no deadline; after
    /// it resumes, it has as much time left as before.
    pub fn set_paused(&self, slot: usize, paused: bool, now: Duration) {
        if slot >= SLOTS {
            return;
        }
        let now = now.as_nanos() as u64;
        let update = |deadline: u64| match (deadline & PAUSED != 0, paused) {
            (false, true) if deadline != 0 => Some(deadline.saturating_sub(now) | PAUSED),
            (true, false) => Some((deadline & !PAUSED) + now),
            _ => None,
        };
        // `update` returns `None` if there is nothing to change.
        let _ = self.0.cell(FIRST_SLOT + 2 * slot).fetch_update(
            Ordering::AcqRel,
            Ordering::Acquire,
            update,
        );
    }

    /// Earliest deadline in the first `slots` slots.
    pub fn next_deadline(&self, slots: usize) -> Option<Duration> {
        self.slots(slots)
            .map(|(next_deadline, _)| next_deadline)
            .min()
    }

    /// Tasks in the first `slots` slots whose deadline has passed at `now`.
    pub fn overdue_tasks(&self, slots: usize, now: Duration) -> Vec<Tid> {
        self.slots(slots)
            .filter(|(next_deadline, _)| *next_deadline <= now)
            .filter_map(|(_, task)| Tid::from_u64(task))
            .collect()
    }

    fn slots(&self, slots: usize) -> impl Iterator<Item = (Duration, u64)> {
        let slot = |slot: usize| {
            let (next_deadline, index) = (
                self.0.cell(FIRST_SLOT + 2 * slot).load(Ordering::Acquire),
                FIRST_SLOT + 2 * slot + 1,
            );
            (next_deadline, self.0.cell(index).load(Ordering::Relaxed))
        };
        let dues = (0..slots.min(SLOTS))
            .map(slot)
            .filter(|(next_deadline, _)| *next_deadline != 0 && next_deadline & PAUSED == 0);
        dues.map(|(next_deadline, task)| (Duration::from_nanos(next_deadline), task))
    }

    /// Current reading of the clock of all deadlines.
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
    fn finds_the_earliest_deadline_that_is_not_paused() {
        let page = ProgressPage::new().unwrap();
        let at = Duration::from_secs;
        let tid = |number| Tid::from_u64(1_800_000_000_000_000_000 + number).unwrap();
        let some = |number| Some((tid(number), at(number)));
        assert_eq!(page.next_deadline(4), None);
        page.set_deadline(3, some(5));
        page.set_deadline(1, some(7));
        assert_eq!(
            (
                page.next_deadline(4),
                page.next_deadline(3),
                page.next_deadline(1)
            ),
            (Some(at(5)), Some(at(7)), None)
        );
        assert_eq!(
            (page.overdue_tasks(4, at(5)), page.overdue_tasks(4, at(9))),
            (vec![tid(5)], vec![tid(7), tid(5)])
        );
        page.set_paused(3, true, at(2));
        page.set_paused(3, true, at(3));
        assert_eq!(
            (page.next_deadline(4), page.overdue_tasks(4, at(6))),
            (Some(at(7)), vec![]),
            "a paused attempt has no deadline"
        );
        page.set_paused(3, false, at(12));
        page.set_paused(3, false, at(13));
        assert_eq!(
            page.overdue_tasks(4, at(15)),
            [tid(7), tid(5)],
            "it has the three seconds that were left"
        );
        assert_eq!(page.overdue_tasks(4, at(14)), [tid(7)]);
        page.set_paused(0, true, at(20));
        page.set_paused(CELLS, true, at(20));
        page.set_paused(3, true, at(20));
        page.set_deadline(3, None);
        page.set_paused(3, false, at(21));
        page.set_deadline(CELLS, some(1));
        assert_eq!(page.next_deadline(usize::MAX), Some(at(7)));
    }
}
