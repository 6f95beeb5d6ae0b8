//! The staged stop: stop intake, wait, cancel, terminate, kill, reap. Commands, workers and
//! managers all use it.
//!
//! [`StagedStop`] decides when each stage begins; its owner carries the stage out. Time is a
//! parameter: any monotonic clock will do.

use std::time::Duration;

/// How long each stage may last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StopPolicy {
    /// How long to wait for running work to end by itself. `None` waits forever.
    pub drain: Option<Duration>,
    /// How long cancelled or terminated work may take before it is killed.
    pub grace: Duration,
}

/// The stages, in order. Each is entered at most once, and the stop never goes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StopStage {
    /// No stop was requested.
    Running,
    /// No new work starts; running work may finish.
    Draining,
    /// Running work is asked to end: cooperative cancel, then SIGTERM to the process group.
    Terminating,
    /// Remaining processes are killed with their whole tree.
    Killing,
}

/// A stop in progress.
#[derive(Clone, Copy, Debug)]
pub struct StagedStop {
    policy: StopPolicy,
    stage: StopStage,
    /// When the current stage ends by itself.
    ends_at: Option<Duration>,
}

impl StopPolicy {
    /// Creates a policy that cancels immediately, and kills after `grace`.
    pub const fn cancel(grace: Duration) -> Self {
        Self {
            drain: Some(Duration::ZERO),
            grace,
        }
    }

    /// Creates a policy that waits for running work, however long it takes.
    pub const fn drain(grace: Duration) -> Self {
        Self { drain: None, grace }
    }
}

impl StagedStop {
    /// Creates a stop that has not been requested yet.
    pub fn new(policy: StopPolicy) -> Self {
        Self {
            policy,
            stage: StopStage::Running,
            ends_at: None,
        }
    }

    /// Returns the current stage.
    pub fn stage(&self) -> StopStage {
        self.stage
    }

    /// Returns when [`tick`](Self::tick) must be called, on the caller's clock.
    pub fn deadline(&self) -> Option<Duration> {
        self.ends_at
    }

    /// Requests a stop. The first call begins it; each further call advances it by one stage.
    pub fn request(&mut self, now: Duration) -> StopStage {
        let next = match self.stage {
            StopStage::Running if self.policy.drain == Some(Duration::ZERO) => {
                StopStage::Terminating
            }
            StopStage::Running => StopStage::Draining,
            StopStage::Draining => StopStage::Terminating,
            StopStage::Terminating | StopStage::Killing => StopStage::Killing,
        };
        self.enter(next, now)
    }

    /// Goes straight to the last stage.
    pub fn kill(&mut self, now: Duration) -> StopStage {
        self.reach(StopStage::Killing, now)
    }

    /// Advances to a stage, unless the stop is there or further.
    pub fn reach(&mut self, stage: StopStage, now: Duration) -> StopStage {
        self.enter(self.stage.max(stage), now)
    }

    /// Advances if the current stage has timed out; returns the stage that has just begun.
    pub fn tick(&mut self, now: Duration) -> Option<StopStage> {
        (self.ends_at? <= now).then(|| self.request(now))
    }

    fn enter(&mut self, stage: StopStage, now: Duration) -> StopStage {
        if stage != self.stage {
            self.stage = stage;
            self.ends_at = match stage {
                StopStage::Running | StopStage::Killing => None,
                StopStage::Draining => self.policy.drain.map(|drain| now.saturating_add(drain)),
                StopStage::Terminating => Some(now.saturating_add(self.policy.grace)),
            };
        }
        self.stage
    }
}

#[cfg(test)]
mod tests;
