//! `TimeLimits`: time limits that a worker sets for its tasks, and the page where its supervisor
//! watches them.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use raddle_model::TaskSpec;
use raddle_runner::{ExecRequest, ProgressPage, RunnerCommand};

/// Time limits for tasks.
#[derive(Clone, Debug, Default)]
pub struct TimeLimits {
    /// Limit of one attempt for each queue, whatever the task allows.
    pub by_queue: BTreeMap<String, Duration>,
    /// Time between SIGTERM and SIGKILL after a timeout. Default: the grace of any stop.
    pub overtime: Option<Duration>,
    /// The most attempts before the worker exits. Unlike `Options::max_tasks`, the value 1 does not
    /// make a one-shot worker.
    pub max_tasks: Option<u64>,
    /// Page that shows the supervisor by when the running attempts must be over.
    pub page: Option<Arc<ProgressPage>>,
}

/// How much later than the runner's deadline the supervisor takes the worker for hung. By then the
/// runner should have killed the attempt.
pub const HANG_MARGIN: Duration = Duration::from_millis(400);

impl TimeLimits {
    /// The timeout of an attempt of this task.
    pub(super) fn timeout_of(&self, spec: &TaskSpec) -> Option<Duration> {
        let task = spec.timeout.map(|timeout| timeout.0);
        task.into_iter()
            .chain(self.by_queue.get(&spec.queue).copied())
            .min()
    }

    pub(super) fn attempt_started(&self, slot: usize, request: &ExecRequest) {
        if let Some(page) = &self.page {
            let due = |timeout: Duration| {
                ProgressPage::clock_now() + timeout + request.timeout_grace + HANG_MARGIN
            };
            page.set_deadline(
                slot,
                request.timeout.map(|timeout| (request.tid, due(timeout))),
            );
        }
    }

    /// Updates the page for a command to a slot: a paused attempt has no deadline, and any other
    /// command resumes it.
    pub(super) fn command_sent(&self, slot: usize, command: RunnerCommand) {
        if let Some(page) = &self.page {
            page.set_paused(
                slot,
                command == RunnerCommand::Pause,
                ProgressPage::clock_now(),
            );
        }
    }

    pub(super) fn attempt_ended(&self, slot: usize) {
        if let Some(page) = &self.page {
            page.set_deadline(slot, None);
        }
    }
}
