//! Workers that a user names where tasks are expected. A worker is a task that was not submitted.

use raddle_model::TaskView;

/// Whether this is a worker.
pub(crate) fn is_worker(task: &TaskView) -> bool {
    task.spec.is_service()
}
