//! The staged stop: stop intake, wait, cancel, terminate, kill, reap. One routine for commands, workers and managers.
//!
//! [`Stop`] decides when each stage begins; its owner carries the stage out. Time is a parameter: any clock whose readings
//! only grow will do.

use std::time::Duration;

/// How long each stage may last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StopPolicy {
    /// How long to wait for what runs to end by itself. `None` waits for ever.
    pub drain: Option<Duration>,
    /// How long what was cancelled or terminated may take before it is killed.
    pub grace: Duration,
}

/// The stages, in order. Each is entered at most once, and none is entered again after a later one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Nobody asked for a stop.
    Running,
    /// Nothing new is begun; what runs may end by itself.
    Draining,
    /// What runs is asked to end: cooperative cancel, then SIGTERM to the group.
    Terminating,
    /// What still runs is killed with its whole tree.
    Killing,
}

/// A stop in progress.
#[derive(Clone, Copy, Debug)]
pub struct Stop {
    policy: StopPolicy,
    stage: Stage,
    /// When the present stage gives way to the next by itself.
    ends_at: Option<Duration>,
}

impl StopPolicy {
    /// Cancel at once, and kill what is still there after `grace`.
    pub const fn cancel(grace: Duration) -> Self {
        Self { drain: Some(Duration::ZERO), grace }
    }

    /// Wait for what runs, however long it takes.
    pub const fn drain(grace: Duration) -> Self {
        Self { drain: None, grace }
    }
}

impl Stop {
    /// Nothing to stop yet.
    pub fn new(policy: StopPolicy) -> Self {
        Self { policy, stage: Stage::Running, ends_at: None }
    }

    /// The present stage.
    pub fn stage(&self) -> Stage {
        self.stage
    }

    /// When [`tick`](Self::tick) has something to say, on the caller's clock.
    pub fn deadline(&self) -> Option<Duration> {
        self.ends_at
    }

    /// Asks for a stop. The first call begins it; each further one moves it on by one stage.
    pub fn request(&mut self, now: Duration) -> Stage {
        let next = match self.stage {
            Stage::Running if self.policy.drain == Some(Duration::ZERO) => Stage::Terminating,
            Stage::Running => Stage::Draining,
            Stage::Draining => Stage::Terminating,
            Stage::Terminating | Stage::Killing => Stage::Killing,
        };
        self.enter(next, now)
    }

    /// Goes straight to the last stage.
    pub fn kill(&mut self, now: Duration) -> Stage {
        self.reach(Stage::Killing, now)
    }

    /// Goes to a stage, unless it is there or further.
    pub fn reach(&mut self, stage: Stage, now: Duration) -> Stage {
        self.enter(self.stage.max(stage), now)
    }

    /// Moves on if the present stage has lasted long enough; returns the stage that has just begun.
    pub fn tick(&mut self, now: Duration) -> Option<Stage> {
        (self.ends_at? <= now).then(|| self.request(now))
    }

    fn enter(&mut self, stage: Stage, now: Duration) -> Stage {
        if stage != self.stage {
            self.stage = stage;
            self.ends_at = match stage {
                Stage::Running | Stage::Killing => None,
                Stage::Draining => self.policy.drain.map(|drain| now.saturating_add(drain)),
                Stage::Terminating => Some(now.saturating_add(self.policy.grace)),
            };
        }
        self.stage
    }
}

#[cfg(test)]
mod tests;
