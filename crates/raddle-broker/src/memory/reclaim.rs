//! Taking back what belongs to workers that are gone.

use raddle_core::{EventKind, Exit, State as TaskState, Tid, settle::UNCHARGED_ATTEMPTS};

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
        let message = format!("worker {owner} is gone");
        let taken = held.into_iter().map(|tid| self.reclaim_task(tid, owner, &message, now)).collect();
        self.workers.remove(&owner);
        self.end_service(owner, TaskState::Failed, Exit::Lost { message }, now);
        taken
    }

    fn reclaim_task(&mut self, tid: Tid, owner: Tid, message: &str, now: Now) -> Reclaimed {
        self.reclaims += 1;
        let (fence, run) = self.held_by_worker(tid);
        let verdict = if run.running || fence.attempt > UNCHARGED_ATTEMPTS {
            let report = self.report_of(fence, Exit::Lost { message: message.into() }, now);
            self.settle(fence, run, report, now)
        } else {
            // Nothing of it is known to have run, so its worker will have died of something else.
            self.give_back(fence, run, EventKind::Reclaimed, "its worker was gone before it began".into(), now)
        };
        Reclaimed { fence, owner, verdict }
    }

    /// Ends the task that a worker is itself.
    pub(super) fn end_service(&mut self, worker: Tid, state: TaskState, exit: Exit, now: Now) {
        // One that was there for a single task is none itself.
        let Some(task) = self.tasks.get(&worker) else { return };
        let fence = task.fence(worker);
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
