//! Tasks given back unfinished.

use raddle_core::{EventKind, Tid};

use super::state::{Now, Place, State};
use crate::request::{Fence, Release, Verdict};

impl State {
    /// Puts a task back as if it had not been claimed.
    pub(super) fn release(&mut self, release: Release, now: Now) -> Verdict {
        match self.active(release.fence) {
            Some(run) => self.give_back(release.fence, run.owner, EventKind::Released, release.reason, now),
            None => self.refuse(release.fence, now),
        }
    }

    /// Puts an active task back without charging it.
    pub(super) fn give_back(&mut self, fence: Fence, owner: Tid, kind: EventKind, reason: String, now: Now) -> Verdict {
        self.log(fence, kind, Some(owner), Some(reason), now);
        self.move_to(fence.tid, Place::Ready);
        self.obey_pending(fence.tid, now).unwrap_or(Verdict::Again(now.wall))
    }
}
