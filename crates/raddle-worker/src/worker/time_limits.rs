//! How long tasks may take by the word of the worker, and what those who keep it alive see of that.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use raddle_model::TaskSpec;
use raddle_runner::{ExecRequest, ProgressPage, RunnerCommand};

/// How long tasks may take.
#[derive(Clone, Debug, Default)]
pub struct TimeLimits {
    /// Of each queue that has a bound, how long one attempt may take, whatever the task itself allows.
    pub by_queue: BTreeMap<String, Duration>,
    /// How long what has taken too long may take to end before it is killed; else as long as whatever is told to end.
    pub overtime: Option<Duration>,
    /// How many attempts the worker begins at most before it leaves. Unlike `Options::max_tasks`, it does not make a one-shot worker of one.
    pub max_tasks: Option<u64>,
    /// Where it is noted by when what runs has to be over, for those who keep this worker alive.
    pub marks: Option<Arc<ProgressPage>>,
}

/// How much later than a runner ends what has taken too long its worker is taken for hung: the runner itself is then.
pub(crate) const BEYOND: Duration = Duration::from_millis(400);

impl TimeLimits {
    /// How long an attempt of this task may take.
    pub(super) fn of(&self, spec: &TaskSpec) -> Option<Duration> {
        let own = spec.timeout.map(|timeout| timeout.0);
        own.into_iter()
            .chain(self.by_queue.get(&spec.queue).copied())
            .min()
    }

    pub(super) fn begun(&self, slot: usize, request: &ExecRequest) {
        if let Some(marks) = &self.marks {
            let due = |timeout: Duration| {
                ProgressPage::clock_now() + timeout + request.timeout_grace + BEYOND
            };
            marks.set_deadline(
                slot,
                request.timeout.map(|timeout| (request.tid, due(timeout))),
            );
        }
    }

    /// The attempt in a slot is told something: what stands still on request may do so for as long as it likes, and whatever else it is told has it go on.
    pub(super) fn told(&self, slot: usize, order: RunnerCommand) {
        if let Some(marks) = &self.marks {
            marks.set_paused(
                slot,
                order == RunnerCommand::Pause,
                ProgressPage::clock_now(),
            );
        }
    }

    pub(super) fn over(&self, slot: usize) {
        if let Some(marks) = &self.marks {
            marks.set_deadline(slot, None);
        }
    }
}
