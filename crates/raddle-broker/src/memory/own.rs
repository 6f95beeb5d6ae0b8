//! Tasks that run where they are submitted.

use raddle_core::Tid;

use super::state::{Now, State};
use crate::{
    Result,
    request::{Own, OwnRequest, Submitted},
};

impl State {
    /// Stores a task and gives it to a worker of its own, unless another would take it.
    pub(super) fn submit_own(&mut self, request: OwnRequest, now: Now) -> Result<Own> {
        let OwnRequest { task, worker, lease, yields } = request;
        let left_to_others = yields && self.entries(now).iter().any(|entry| entry.would_take(&task.spec));
        let submitted = self.submit(vec![task], now)?[0];
        let Submitted::New(tid) = submitted else {
            return Ok(Own { submitted, worker: None, claim: None });
        };
        if left_to_others {
            return Ok(Own { submitted, worker: None, claim: None });
        }
        let owner = self.next_id(now);
        self.enter(owner, worker, lease, true, now);
        let is_fresh = self.is_ready(tid) && !self.end_expired(tid, now);
        let claim = is_fresh.then(|| self.hand_over(tid, owner, now));
        Ok(Own { submitted, worker: Some(owner), claim })
    }

    /// Lets a worker leave that was there for one task alone, whose end this is.
    pub(super) fn dismiss(&mut self, owner: Tid) {
        if self.workers.get(&owner).is_some_and(|worker| worker.own) {
            self.workers.remove(&owner);
        }
    }
}
