//! The exit codes of the command line, and which of them the end of a task gives.

use raddle_model::{AttemptReport, ExitStatus, TaskState};

/// The task failed.
pub const TASK_FAILED: u8 = 1;
/// The request was wrong, or names something that does not exist.
pub const USAGE: u8 = 2;
/// A timeout passed.
pub const TIMED_OUT: u8 = 124;
/// Raddle itself failed.
pub const RADDLE: u8 = 125;
/// Interrupted.
pub const INTERRUPTED: u8 = 130;
/// Killed.
pub const KILLED: u8 = 137;

/// The exit code for a task in this state, whose last attempt ended with this report.
pub fn of_task(state: TaskState, report: Option<&AttemptReport>) -> u8 {
    match state {
        TaskState::Timeout => TIMED_OUT,
        TaskState::Cancelled if report.is_some_and(|report| report.exit == ExitStatus::Expired) => {
            TIMED_OUT
        }
        TaskState::Cancelled => INTERRUPTED,
        TaskState::Killed => KILLED,
        _ => match report {
            // A code that does not fit into a byte must not turn a failure into a success.
            Some(report) => u8::try_from(report.exit.shell_code()).unwrap_or(TASK_FAILED),
            None => RADDLE,
        },
    }
}
