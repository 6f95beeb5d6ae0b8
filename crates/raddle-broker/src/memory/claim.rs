//! Giving tasks to workers.

use raddle_core::{EventKind, Progress, Tid};

use super::state::{Now, Place, Run, State};
use crate::{
    Error, Result,
    request::{Claim, ClaimRequest, Fence, Started},
};

impl State {
    /// Takes what the request may have, or `None` if that is nothing yet.
    pub(super) fn claim(&mut self, request: &ClaimRequest, now: Now) -> Result<Option<Vec<Claim>>> {
        if !self.workers.get(&request.owner).is_some_and(|worker| worker.is_alive(now)) {
            return Err(Error::NotFound(request.owner));
        }
        let max = usize::try_from(request.max).unwrap_or(usize::MAX);
        loop {
            let tids = match request.only {
                Some(tid) => Vec::from_iter(self.is_ready(tid).then_some(tid).filter(|_| max > 0)),
                None => {
                    self.ready.first(max, |p| request.queues.contains(&p.queue) && p.needs.is_subset(&request.caps))
                }
            };
            let is_over = tids.is_empty();
            let fresh: Vec<Tid> = tids.into_iter().filter(|tid| !self.end_expired(*tid, now)).collect();
            if is_over || !fresh.is_empty() {
                let claims: Vec<_> = fresh.into_iter().map(|tid| self.hand_over(tid, request.owner, now)).collect();
                return Ok(Some(claims).filter(|claims| !claims.is_empty()));
            }
        }
    }

    /// Notes that attempts have begun.
    pub(super) fn started(&mut self, started: Started, now: Now) {
        let Some(run) = self.active(started.fence) else { return };
        if !run.running {
            self.log(started.fence, EventKind::Running, Some(run.owner), None, now);
        }
        self.move_to(started.fence.tid, Place::Active(Run { running: true, pid: started.pid, ..run }));
    }

    /// Notes that a running attempt stands still, or goes on.
    pub(super) fn paused(&mut self, fence: Fence, paused: bool, now: Now) {
        let Some(run) = self.active(fence).filter(|run| run.paused != paused) else { return };
        self.log(fence, if paused { EventKind::Paused } else { EventKind::Resumed }, None, None, now);
        self.move_to(fence.tid, Place::Active(Run { paused, ..run }));
    }

    /// Notes how far a running attempt has come.
    pub(super) fn progress(&mut self, fence: Fence, progress: Progress) {
        if self.active(fence).is_some() {
            self.known(fence.tid).progress = Some(progress);
        }
    }

    pub(super) fn is_ready(&self, tid: Tid) -> bool {
        self.tasks.get(&tid).is_some_and(|task| matches!(task.place, Place::Ready))
    }

    pub(super) fn hand_over(&mut self, tid: Tid, owner: Tid, now: Now) -> Claim {
        let run = Run { owner, running: false, claimed_at: now.wall, pid: None, paused: false, told: None };
        self.move_to(tid, Place::Active(run));
        let task = self.known(tid);
        task.tally.attempt += 1;
        task.worker = Some(owner);
        task.progress = None;
        let claim = Claim { fence: Fence { tid, attempt: task.tally.attempt }, spec: task.spec.clone() };
        self.log(claim.fence, EventKind::Spawning, Some(owner), None, now);
        claim
    }
}
