//! What this process was given through an agent, for when an answer is lost.
//!
//! A server that is killed after the engine has committed a claim, and before it has told us, leaves a task with a worker that does not know
//! of it. The lease does not help, for that worker lives. So whoever loses the connection while a claim is under way is *in doubt*, and
//! before its next claim it looks at what the broker thinks it has. What was never given to it goes back.
//!
//! This counts on a worker making its claims through one [`Remote`](super::Remote).

use std::{
    collections::{HashMap, HashSet},
    sync::{Mutex, MutexGuard, PoisonError},
};

use raddle_core::{State, Tid};
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::{Claim, Fence, Release, TaskFilter};

#[derive(Default)]
pub(super) struct Claims {
    books: Mutex<Books>,
    /// Held by claims while they are made, and by whoever looks for those that were lost: one would take the other's for lost.
    gate: RwLock<()>,
}

#[derive(Default)]
struct Books {
    /// The attempts that were given to somebody here, and to whom.
    held: HashMap<Fence, Tid>,
    in_doubt: HashSet<Tid>,
}

impl Claims {
    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// These are with their owner.
    pub(super) fn given(&self, owner: Tid, claims: &[Claim]) {
        self.books().held.extend(claims.iter().map(|claim| (claim.fence, owner)));
    }

    /// These are over, or with somebody else.
    pub(super) fn over(&self, fences: impl IntoIterator<Item = Fence>) {
        let mut books = self.books();
        for fence in fences {
            books.held.remove(&fence);
        }
    }

    /// A worker has left, or was taken for dead: all it had is with others.
    pub(super) fn left(&self, owner: Tid) {
        let mut books = self.books();
        books.held.retain(|_, holder| *holder != owner);
        books.in_doubt.remove(&owner);
    }

    /// What became of a claim of this worker is not known.
    pub(super) fn doubt(&self, owner: Tid) {
        self.books().in_doubt.insert(owner);
    }

    pub(super) fn is_in_doubt(&self, owner: Tid) -> bool {
        self.books().in_doubt.contains(&owner)
    }

    /// Lets a claim be made.
    pub(super) async fn claiming(&self) -> RwLockReadGuard<'_, ()> {
        self.gate.read().await
    }

    /// Keeps claims from being made. `None` while some are: then the doubt has to last, for they can take an hour.
    pub(super) fn settling(&self) -> Option<RwLockWriteGuard<'_, ()>> {
        self.gate.try_write().ok()
    }

    /// The tasks of a worker among which those that were lost are. What has begun to run was known to it.
    pub(super) fn suspects(owner: Tid) -> TaskFilter {
        TaskFilter { states: vec![State::Spawning], worker: Some(owner), ..TaskFilter::default() }
    }

    /// Which of a worker's attempts it was never given.
    pub(super) fn lost(&self, all: impl IntoIterator<Item = Fence>) -> Vec<Release> {
        let books = self.books();
        all.into_iter()
            .filter(|fence| !books.held.contains_key(fence))
            .map(|fence| Release { fence, reason: "the agent ended before it had handed it over".into() })
            .collect()
    }

    /// All that was lost has gone back.
    pub(super) fn settled(&self, owner: Tid) {
        self.books().in_doubt.remove(&owner);
    }
}

#[cfg(test)]
mod tests {
    use raddle_core::Spec;

    use super::*;

    #[test]
    fn what_was_never_given_is_lost_and_nothing_else() {
        let tid = |n: u64| Tid::from_u64(1_700_000_000_000_000_000 + n).unwrap();
        let fence = |n| Fence { tid: tid(n), attempt: 1, owner: tid(100) };
        let claim = |n| Claim { fence: fence(n), spec: Spec::command(["true"]), fencing_token: 1 };
        let (me, other) = (tid(100), tid(101));
        let claims = Claims::default();
        claims.given(me, &[claim(1), claim(2)]);
        claims.over([fence(2)]);
        claims.doubt(me);
        assert!(claims.is_in_doubt(me) && !claims.is_in_doubt(other));
        let later = Fence { attempt: 2, ..fence(1) };
        let lost: Vec<_> = claims.lost([fence(1), later, fence(3)]).into_iter().map(|release| release.fence).collect();
        assert_eq!(lost, [later, fence(3)]);
        claims.left(me);
        assert!(!claims.is_in_doubt(me));
        assert_eq!(claims.lost([fence(1)]).len(), 1);
    }
}
