//! Tasks given back unfinished.

use std::time::Duration;

use raddle_core::EventKind;

use super::state::{Now, Run, State};
use crate::request::{Fence, Release, Verdict};

impl State {
    /// Puts a task back as if it had not been claimed.
    pub(super) fn release(&mut self, release: Release, now: Now) -> Verdict {
        match self.active(release.fence) {
            Some(run) => self.give_back(release.fence, run, EventKind::Released, release.reason, now),
            None => self.refuse(release.fence, now),
        }
    }

    /// Puts an active task back without charging it.
    pub(super) fn give_back(&mut self, fence: Fence, run: Run, kind: EventKind, reason: String, now: Now) -> Verdict {
        self.log(fence, kind, Some(run.owner), Some(reason), now);
        self.wait_again(fence.tid, run, now.plus(Duration::ZERO), now)
    }
}
