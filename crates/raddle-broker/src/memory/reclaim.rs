//! Taking back what belongs to workers that are gone.

use raddle_core::{
    Exit, Tid,
    departure::{self, Behind},
};

use super::state::{End, Now, State, Worker};
use crate::request::Reclaimed;

impl State {
    /// Takes back what belongs to workers whose lease has run out.
    pub(super) fn reclaim(&mut self, now: Now) -> Vec<Reclaimed> {
        let gone: Vec<Tid> =
            self.workers.iter().filter(|(_, worker)| !worker.is_alive(now)).map(|(tid, _)| *tid).collect();
        gone.into_iter().flat_map(|owner| self.reclaim_from(owner, now)).collect()
    }

    fn reclaim_from(&mut self, owner: Tid, now: Now) -> Vec<Reclaimed> {
        let held = self.workers.get(&owner).map(|worker| worker.active.clone()).unwrap_or_default();
        let taken = held.into_iter().map(|tid| self.reclaim_task(tid, owner, now)).collect();
        self.workers.remove(&owner);
        self.end_service(owner, departure::gone(owner), now);
        taken
    }

    fn reclaim_task(&mut self, tid: Tid, owner: Tid, now: Now) -> Reclaimed {
        self.reclaims += 1;
        let (fence, run) = self.held_by_worker(tid);
        let verdict = match departure::taken_from(owner, run.running, fence.attempt) {
            Behind::Ended(exit) => {
                let report = self.report_of(fence, exit, now);
                self.settle(fence, run, report, now)
            }
            Behind::Back(kind, reason) => self.give_back(fence, run, kind, reason, now),
        };
        Reclaimed { fence, owner, verdict }
    }

    /// Ends the task that a worker is itself.
    pub(super) fn end_service(&mut self, worker: Tid, exit: Exit, now: Now) {
        // One that was there for a single task is none itself.
        let Some(task) = self.tasks.get(&worker) else { return };
        let (fence, state) = (task.fence(worker), departure::state_of_worker(&exit));
        let report = self.report_of(fence, exit, now);
        self.end(fence, None, End { state, dead: false, report, when: now });
    }
}

impl Worker {
    /// Whether its lease holds.
    pub(super) fn is_alive(&self, now: Now) -> bool {
        now.mono < self.lease
    }
}
