//! What follows from the end of a worker: for the tasks that it has, and for the task that it is.

use crate::{EventKind, Exit, State, Tid, settle::UNCHARGED_ATTEMPTS};

/// What becomes of a task that a worker has left behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Behind {
    /// Its attempt has ended so.
    Ended(Exit),
    /// It goes back as if it had not been claimed: what the log says of that, and why.
    Back(EventKind, String),
}

/// What becomes of a task whose worker is gone. `has_begun` is whether its present attempt is known to have.
pub fn taken_from(worker: Tid, has_begun: bool, attempt: u32) -> Behind {
    if has_begun || attempt > UNCHARGED_ATTEMPTS {
        return Behind::Ended(gone(worker));
    }
    // Nothing of it is known to have run, so its worker will have died of something else.
    Behind::Back(EventKind::Reclaimed, "its worker was gone before it began".into())
}

/// What the log says of a task that a worker gives back because it leaves in good order, and why.
pub fn given_back_by(worker: Tid) -> (EventKind, String) {
    (EventKind::Released, format!("worker {worker} has left"))
}

/// How an attempt ended whose worker is gone, and how that worker did.
pub fn gone(worker: Tid) -> Exit {
    Exit::Lost { message: format!("worker {worker} is gone") }
}

/// How a worker ended that has left by itself, perhaps because something went wrong.
pub fn left(failure: Option<String>) -> Exit {
    failure.map_or(Exit::Code { code: 0 }, |message| Exit::Lost { message })
}

/// The terminal state of the task that a worker is.
pub fn state_of_worker(exit: &Exit) -> State {
    if exit.is_success() { State::Completed } else { State::Failed }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker() -> Tid {
        Tid::from_u64(1_700_000_000_000_000_000).unwrap()
    }

    #[test]
    fn only_what_may_have_killed_its_worker_is_charged() {
        let lost = Behind::Ended(gone(worker()));
        assert_eq!(taken_from(worker(), true, 1), lost);
        assert!(matches!(taken_from(worker(), false, 1), Behind::Back(EventKind::Reclaimed, _)));
        assert!(matches!(taken_from(worker(), false, UNCHARGED_ATTEMPTS), Behind::Back(..)));
        assert_eq!(taken_from(worker(), false, UNCHARGED_ATTEMPTS + 1), lost);
    }

    #[test]
    fn a_worker_that_says_what_went_wrong_has_failed() {
        assert_eq!(state_of_worker(&left(None)), State::Completed);
        assert_eq!(state_of_worker(&left(Some("no disk".into()))), State::Failed);
        assert_eq!(state_of_worker(&gone(worker())), State::Failed);
    }
}
