//! What follows from the end of an attempt: the one place where retries, dead letters and final states are decided.

use std::time::Duration;

use crate::{EventKind, Exit, Spec, State, Tid, spec::Reserved};

/// How many attempts may be lost with their worker before the task counts as the cause of it.
///
/// A spec that allows more failures than this allows as many losses. It is not 1, because workers also die for reasons
/// of their own, and a task must survive that without having asked for retries.
pub const LOSSES_ALLOWED: u32 = 3;

/// How often a task may be lost with its worker before it was known to have begun, without that being held against it.
///
/// Tasks that wait in a worker for their turn are lost with it through no fault of theirs. One that kills its worker at once looks
/// the same each time; after so many attempts it is no longer believed.
pub const UNCHARGED_ATTEMPTS: u32 = 10;

/// How long a task waits that a worker could not begin: for want of a handler, or of what the system gives.
const UNBEGUN_PAUSE: Duration = Duration::from_secs(5);

/// The history of a task as far as decisions need it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// The number of the latest attempt, which is the fencing token of its writes. It only ever grows.
    pub attempt: u32,
    /// Attempts that ended badly.
    pub failures: u32,
    /// Attempts that vanished with their worker after the target had begun.
    pub losses: u32,
}

impl Tally {
    /// Whether no attempt has been charged with anything: as far as is known, the target has never begun.
    pub fn is_unrun(self) -> bool {
        self.failures == 0 && self.losses == 0
    }
}

/// What follows from the end of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// The task is over.
    Done {
        /// Its terminal state.
        state: State,
        /// Whether it stands in the dead-letter queue from now on.
        dead: bool,
        /// Its history, the attempt that ended it included.
        tally: Tally,
    },
    /// The task waits for another attempt.
    Again {
        /// How long at least.
        pause: Duration,
        /// Its history from now on.
        tally: Tally,
    },
}

/// Decides what follows from `exit` for a task with this history. `tally` does not count the attempt that just ended.
pub fn settle(spec: &Spec, tid: Tid, tally: Tally, exit: &Exit) -> Next {
    match exit {
        Exit::Code { code: 0 } => done(State::Completed, tally),
        Exit::Killed => done(State::Killed, tally),
        Exit::Cancelled if spec.on_stop == Reserved::Requeue => Next::Again { pause: Duration::ZERO, tally },
        Exit::Cancelled | Exit::Expired => done(State::Cancelled, tally),
        // It is not the task's fault, and another worker may have what it needs; but this one must not take it again at once.
        Exit::Unfit { .. } | Exit::Starved { .. } => Next::Again { pause: UNBEGUN_PAUSE, tally },
        // Whatever kept the worker from renewing its lease in time, it was not this task, as far as is known.
        Exit::Lapsed if tally.attempt <= UNCHARGED_ATTEMPTS => Next::Again { pause: Duration::ZERO, tally },
        Exit::Lost { .. } | Exit::Lapsed => {
            let tally = Tally { losses: tally.losses + 1, ..tally };
            if tally.losses < spec.retry.attempts.max(LOSSES_ALLOWED) {
                return Next::Again { pause: Duration::ZERO, tally };
            }
            exhausted(spec, tid, tally, State::Failed)
        }
        Exit::Timeout => failed(spec, tid, tally, State::Timeout),
        Exit::Error { permanent: true, .. } | Exit::Refused { .. } => {
            exhausted(spec, tid, Tally { failures: tally.failures + 1, ..tally }, State::Failed)
        }
        _ => failed(spec, tid, tally, State::Failed),
    }
}

/// What the log says of an attempt that ended so, and is followed by another.
pub fn event_before_another(exit: &Exit) -> EventKind {
    match exit {
        Exit::Lost { .. } => EventKind::Reclaimed,
        Exit::Cancelled | Exit::Lapsed | Exit::Unfit { .. } | Exit::Starved { .. } => EventKind::Released,
        _ => EventKind::Retrying,
    }
}

fn failed(spec: &Spec, tid: Tid, tally: Tally, last: State) -> Next {
    let tally = Tally { failures: tally.failures + 1, ..tally };
    if tally.failures < spec.retry.attempts {
        return Next::Again { pause: spec.retry.pause(tally.failures, tid), tally };
    }
    exhausted(spec, tid, tally, last)
}

fn exhausted(spec: &Spec, tid: Tid, tally: Tally, last: State) -> Next {
    match spec.on_error {
        Reserved::Requeue => {
            Next::Again { pause: spec.retry.pause((tally.failures + tally.losses).max(1), tid), tally }
        }
        Reserved::Keep => Next::Done { state: last, dead: true, tally },
        Reserved::Clear => done(last, tally),
    }
}

fn done(state: State, tally: Tally) -> Next {
    Next::Done { state, dead: false, tally }
}

#[cfg(test)]
mod tests;
