//! State of one child: starting, ready or stopping.

use std::time::Duration;

use raddle_model::stop::StagedStop;

use crate::{GroupPolicy, HangKind, RecyclePolicy, ReplicaSlot, StopReason};

#[derive(Clone, Debug)]
pub(crate) struct Child {
    pub(crate) slot: ReplicaSlot,
    pub(crate) started_at: Duration,
    pub(crate) phase: Phase,
    /// Time of the last heartbeat.
    pub(crate) last_heartbeat: Duration,
    /// Since when its process is suspended (SIGSTOP).
    pub(crate) suspended: Option<Duration>,
    pub(crate) recycle_limits: RecyclePolicy,
    tasks: u64,
    rss: u64,
    /// Whether the group's definition has changed since it was started.
    pub(crate) outdated: bool,
    /// Whether the child has proven stable, or did not have to.
    pub(crate) proven_stable: bool,
    /// When it was killed.
    pub(crate) killed: Option<Duration>,
}

/// How long a child must stay ready until its slot counts as healthy again.
pub(crate) const STABLE_AFTER: Duration = Duration::from_secs(10);

/// How long a killed process may take to disappear. After that the supervisor gives up on it and
/// leaves it to the kernel.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Clone, Debug)]
pub(crate) enum Phase {
    /// `since` restarts when the supervisor itself was stalled.
    Starting {
        since: Duration,
    },
    Ready {
        since: Duration,
    },
    Stopping {
        stop: StagedStop,
        reason: StopReason,
        was_ready: Option<Duration>,
    },
}

impl Child {
    pub(crate) fn new(slot: ReplicaSlot, recycle_limits: RecyclePolicy, now: Duration) -> Self {
        Self {
            slot,
            started_at: now,
            phase: Phase::Starting { since: now },
            last_heartbeat: now,
            suspended: None,
            recycle_limits,
            tasks: 0,
            rss: 0,
            outdated: false,
            proven_stable: true,
            killed: None,
        }
    }

    pub(crate) fn is_starting(&self) -> bool {
        matches!(self.phase, Phase::Starting { .. })
    }

    pub(crate) fn is_ready(&self) -> bool {
        matches!(self.phase, Phase::Ready { .. })
    }

    pub(crate) fn is_stopping(&self) -> bool {
        matches!(self.phase, Phase::Stopping { .. })
    }

    /// Returns since when it has been ready, also if it is stopping now.
    pub(crate) fn ready_since(&self) -> Option<Duration> {
        match &self.phase {
            Phase::Starting { .. } => None,
            Phase::Ready { since } => Some(*since),
            Phase::Stopping { was_ready, .. } => *was_ready,
        }
    }

    /// Restarts its timers: the supervisor was stalled, so silence until `now` says nothing about
    /// the child.
    pub(crate) fn restart_timers(&mut self, now: Duration) {
        self.last_heartbeat = now;
        if let Phase::Starting { since } = &mut self.phase {
            *since = now;
        }
    }

    pub(crate) fn record_measurements(&mut self, tasks: u64, rss: Option<u64>) {
        self.tasks = tasks;
        self.rss = rss.unwrap_or(self.rss);
    }

    /// Returns why the child counts as hung at `now`, if it does.
    pub(crate) fn detect_hang(&self, policy: &GroupPolicy, now: Duration) -> Option<HangKind> {
        let (at, hang) = self.hang_deadline(policy)?;
        (at <= now).then_some(hang)
    }

    /// Returns when the child counts as hung if nothing is heard from it until then.
    pub(crate) fn hang_deadline(&self, policy: &GroupPolicy) -> Option<(Duration, HangKind)> {
        let GroupPolicy {
            hang_timeout,
            start_timeout,
            ..
        } = policy;
        let stopped = self
            .suspended
            .and_then(|since| Some((since + (*hang_timeout)?, HangKind::Suspended)));
        match self.phase {
            Phase::Starting { since } => {
                stopped.or(start_timeout.map(|within| (since + within, HangKind::Unready)))
            }
            Phase::Ready { .. } => stopped.or(hang_timeout
                .map(|hang_timeout| (self.last_heartbeat + hang_timeout, HangKind::Silent))),
            // The staged stop has its own deadlines.
            Phase::Stopping { .. } => None,
        }
    }

    /// Returns when the child needs attention if nothing happens before.
    pub(crate) fn next_deadline(&self, policy: &GroupPolicy, now: Duration) -> Option<Duration> {
        let hang = self.hang_deadline(policy).map(|(at, _)| at);
        match &self.phase {
            Phase::Starting { .. } => hang,
            Phase::Ready { since } => {
                let proven_stable = (!self.proven_stable).then_some(*since + STABLE_AFTER);
                let age = self
                    .recycle_limits
                    .age
                    .map(|age| self.started_at + age)
                    .filter(|at| *at > now);
                [hang, proven_stable, age].into_iter().flatten().min()
            }
            Phase::Stopping { stop, .. } => {
                stop.deadline().or(self.give_up_at().filter(|at| *at > now))
            }
        }
    }

    /// Returns when the supervisor gives up on the killed process and leaves it to the kernel.
    pub(crate) fn give_up_at(&self) -> Option<Duration> {
        self.killed.map(|at| at + KILL_TIMEOUT)
    }

    /// Returns whether the child has started its maximum number of tasks.
    pub(crate) fn has_reached_task_limit(&self) -> bool {
        self.recycle_limits
            .tasks
            .is_some_and(|most| self.tasks >= most)
    }

    /// Returns why the child must be recycled, if it must.
    pub(crate) fn recycle_reason(&self, now: Duration) -> Option<StopReason> {
        let Phase::Ready { .. } = self.phase else {
            return None;
        };
        let RecyclePolicy { age, rss, .. } = self.recycle_limits;
        if self.outdated {
            return Some(StopReason::Outdated);
        }
        if self.has_reached_task_limit() {
            return Some(StopReason::Tasks);
        }
        if rss.is_some_and(|most| self.rss >= most) {
            return Some(StopReason::Rss);
        }
        age.is_some_and(|most| self.started_at + most <= now)
            .then_some(StopReason::Age)
    }
}
