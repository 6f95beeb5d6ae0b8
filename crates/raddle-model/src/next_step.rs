//! Consequences of the end of an attempt. Retries, dead letters and final states are decided here
//! and nowhere else.

use std::time::Duration;

use crate::{ExitStatus, TaskEventKind, TaskSpec, TaskState, Tid, spec::ReservedPolicy};

/// How many attempts may be lost with their worker before the task is considered the cause.
///
/// A spec that allows more failures than this allows as many losses. The value is not 1, because
/// workers also die for unrelated reasons, and a task must survive that without having requested
/// retries.
pub const LOSSES_ALLOWED: u32 = 3;

/// How many attempts may be lost with their worker before the target is known to have started,
/// without being charged.
///
/// Prefetched tasks are lost with their worker through no fault of their own. A task that kills its
/// worker immediately looks the same each time, so after this many attempts the loss is charged.
pub const UNCHARGED_ATTEMPTS: u32 = 10;

/// How long a task waits after a worker could not start it: the worker had no handler, or the
/// operating system had no resources.
const NOT_STARTED_PAUSE: Duration = Duration::from_secs(5);

/// The history of a task, as far as decisions need it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttemptCounters {
    /// Number of the latest attempt, which is the fencing token of its writes. It only grows.
    pub attempt: u32,
    /// Failed attempts.
    pub failures: u32,
    /// Attempts lost with their worker after the target had started.
    pub losses: u32,
}

impl AttemptCounters {
    /// Returns whether no attempt has been charged: as far as is known, the target has never
    /// started.
    pub fn is_unrun(self) -> bool {
        self.failures == 0 && self.losses == 0
    }
}

/// Consequence of the end of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NextStep {
    /// The task ends.
    Finish {
        /// Its terminal state.
        state: TaskState,
        /// Whether the task moves to the dead-letter queue.
        dead: bool,
        /// The counters, including the attempt that ended the task.
        counters: AttemptCounters,
    },
    /// The task waits for another attempt.
    Retry {
        /// Minimum wait.
        pause: Duration,
        /// The updated counters.
        counters: AttemptCounters,
    },
}

/// Decides what follows from `exit`. `counters` does not include the attempt that just ended.
pub fn decide_next(
    spec: &TaskSpec,
    tid: Tid,
    counters: AttemptCounters,
    exit: &ExitStatus,
) -> NextStep {
    match exit {
        ExitStatus::Code { code: 0 } => finish(TaskState::Completed, counters),
        ExitStatus::Killed => finish(TaskState::Killed, counters),
        ExitStatus::Cancelled if spec.on_stop == ReservedPolicy::Requeue => NextStep::Retry {
            pause: Duration::ZERO,
            counters,
        },
        ExitStatus::Cancelled | ExitStatus::Expired => finish(TaskState::Cancelled, counters),
        // The task is not at fault, and another worker may have what it needs. The pause keeps this
        // worker from claiming it again immediately.
        ExitStatus::NoHandler { .. } | ExitStatus::ResourceExhausted { .. } => NextStep::Retry {
            pause: NOT_STARTED_PAUSE,
            counters,
        },
        // Assume that something other than this task kept the worker from renewing its lease.
        ExitStatus::LeaseExpired if counters.attempt <= UNCHARGED_ATTEMPTS => NextStep::Retry {
            pause: Duration::ZERO,
            counters,
        },
        ExitStatus::WorkerLost { .. } | ExitStatus::LeaseExpired => {
            let counters = AttemptCounters {
                losses: counters.losses + 1,
                ..counters
            };
            if counters.losses < spec.retry.attempts.max(LOSSES_ALLOWED) {
                return NextStep::Retry {
                    pause: Duration::ZERO,
                    counters,
                };
            }
            apply_on_error(spec, tid, counters, TaskState::Failed)
        }
        ExitStatus::Timeout => retry_or_exhaust(spec, tid, counters, TaskState::Timeout),
        ExitStatus::Error {
            retry_after_ms: Some(pause),
            ..
        } => NextStep::Retry {
            pause: Duration::from_millis(*pause),
            counters,
        },
        ExitStatus::Error {
            permanent: true, ..
        }
        | ExitStatus::Rejected { .. } => apply_on_error(
            spec,
            tid,
            AttemptCounters {
                failures: counters.failures + 1,
                ..counters
            },
            TaskState::Failed,
        ),
        _ => retry_or_exhaust(spec, tid, counters, TaskState::Failed),
    }
}

/// Returns the event to log for an attempt that ended with `exit` and is followed by another.
pub fn event_before_another(exit: &ExitStatus) -> TaskEventKind {
    match exit {
        ExitStatus::WorkerLost { .. } => TaskEventKind::Reclaimed,
        ExitStatus::Cancelled
        | ExitStatus::LeaseExpired
        | ExitStatus::NoHandler { .. }
        | ExitStatus::ResourceExhausted { .. } => TaskEventKind::Released,
        _ => TaskEventKind::Retrying,
    }
}

fn retry_or_exhaust(
    spec: &TaskSpec,
    tid: Tid,
    counters: AttemptCounters,
    last: TaskState,
) -> NextStep {
    let counters = AttemptCounters {
        failures: counters.failures + 1,
        ..counters
    };
    if counters.failures < spec.retry.attempts {
        return NextStep::Retry {
            pause: spec.retry.pause(counters.failures, tid),
            counters,
        };
    }
    apply_on_error(spec, tid, counters, last)
}

fn apply_on_error(
    spec: &TaskSpec,
    tid: Tid,
    counters: AttemptCounters,
    last: TaskState,
) -> NextStep {
    match spec.on_error {
        ReservedPolicy::Requeue => NextStep::Retry {
            pause: spec
                .retry
                .pause((counters.failures + counters.losses).max(1), tid),
            counters,
        },
        ReservedPolicy::Keep => NextStep::Finish {
            state: last,
            dead: true,
            counters,
        },
        ReservedPolicy::Clear => finish(last, counters),
    }
}

fn finish(state: TaskState, counters: AttemptCounters) -> NextStep {
    NextStep::Finish {
        state,
        dead: false,
        counters,
    }
}

#[cfg(test)]
mod tests;
