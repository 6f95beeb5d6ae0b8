//! Consequences of the end of a worker: for the tasks that it held, and for the task that it is.

use crate::{ExitStatus, TaskEventKind, TaskState, Tid, next_step::UNCHARGED_ATTEMPTS};

/// Fate of a task whose worker is lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LostTaskOutcome {
    /// The attempt ended with this status.
    Ended(ExitStatus),
    /// The task is requeued as if it had not been claimed. Holds the event to log and the reason.
    Back(TaskEventKind, String),
}

/// Decides what happens to a task whose worker is lost. `has_begun` is whether the current attempt
/// is known to have started.
pub fn taken_from(worker: Tid, has_begun: bool, attempt: u32) -> LostTaskOutcome {
    if has_begun || attempt > UNCHARGED_ATTEMPTS {
        return LostTaskOutcome::Ended(worker_lost(worker));
    }
    // The task is not known to have run, so assume that the worker died of another cause.
    LostTaskOutcome::Back(
        TaskEventKind::Reclaimed,
        "its worker was gone before it began".into(),
    )
}

/// Returns the event and the reason to log for a task that a worker releases because it shuts down
/// gracefully.
pub fn given_back_by(worker: Tid) -> (TaskEventKind, String) {
    (TaskEventKind::Released, format!("worker {worker} has left"))
}

/// Returns the exit status of an attempt whose worker is lost, and of that worker itself.
pub fn worker_lost(worker: Tid) -> ExitStatus {
    ExitStatus::WorkerLost {
        message: format!("worker {worker} is gone"),
    }
}

/// Returns the exit status of a worker that exited by itself, possibly after a failure.
pub fn worker_left(failure: Option<String>) -> ExitStatus {
    failure.map_or(ExitStatus::Code { code: 0 }, |message| {
        ExitStatus::WorkerLost { message }
    })
}

/// Returns the terminal state of the task that represents a worker.
pub fn state_of_worker(exit: &ExitStatus) -> TaskState {
    if exit.is_success() {
        TaskState::Completed
    } else {
        TaskState::Failed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker() -> Tid {
        Tid::from_u64(1_700_000_000_000_000_000).unwrap()
    }

    #[test]
    fn charges_only_tasks_that_may_have_killed_the_worker() {
        let lost = LostTaskOutcome::Ended(worker_lost(worker()));
        assert_eq!(taken_from(worker(), true, 1), lost);
        assert!(matches!(
            taken_from(worker(), false, 1),
            LostTaskOutcome::Back(TaskEventKind::Reclaimed, _)
        ));
        assert!(matches!(
            taken_from(worker(), false, UNCHARGED_ATTEMPTS),
            LostTaskOutcome::Back(..)
        ));
        assert_eq!(taken_from(worker(), false, UNCHARGED_ATTEMPTS + 1), lost);
    }

    #[test]
    fn a_worker_that_reports_a_failure_has_failed() {
        assert_eq!(state_of_worker(&worker_left(None)), TaskState::Completed);
        assert_eq!(
            state_of_worker(&worker_left(Some("no disk".into()))),
            TaskState::Failed
        );
        assert_eq!(state_of_worker(&worker_lost(worker())), TaskState::Failed);
    }
}
