//! State of one child: starting, ready or stopping.

use std::time::Duration;

use super::{GroupPolicy, HangKind, RecyclePolicy, ReplicaSlot, StopReason};
use crate::stop::StagedStop;

#[derive(Clone, Debug)]
pub(super) struct Child {
    pub(super) slot: ReplicaSlot,
    pub(super) started_at: Duration,
    pub(super) phase: Phase,
    /// Time of the last heartbeat.
    pub(super) last_heartbeat: Duration,
    /// Since when its process is suspended (SIGSTOP).
    pub(super) suspended: Option<Duration>,
    pub(super) recycle_limits: RecyclePolicy,
    tasks: u64,
    rss: u64,
    /// Whether the group's definition has changed since it was started.
    pub(super) outdated: bool,
    /// Whether the child has proven stable, or did not have to.
    pub(super) proven_stable: bool,
    /// When it was killed.
    pub(super) killed: Option<Duration>,
}

/// How long a child must stay ready until its slot counts as healthy again.
pub(super) const STABLE_AFTER: Duration = Duration::from_secs(10);

/// How long a killed process may take to disappear. After that the supervisor gives up on it and
/// leaves it to the kernel.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Clone, Debug)]
pub(super) enum Phase {
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
    pub(super) fn new(slot: ReplicaSlot, recycle_limits: RecyclePolicy, now: Duration) -> Self {
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

    pub(super) fn is_starting(&self) -> bool {
        matches!(self.phase, Phase::Starting { .. })
    }

    pub(super) fn is_ready(&self) -> bool {
        matches!(self.phase, Phase::Ready { .. })
    }

    pub(super) fn is_stopping(&self) -> bool {
        matches!(self.phase, Phase::Stopping { .. })
    }

    /// Returns since when it has been ready, also if it is stopping now.
    pub(super) fn ready_since(&self) -> Option<Duration> {
        match &self.phase {
            Phase::Starting { .. } => None,
            Phase::Ready { since } => Some(*since),
            Phase::Stopping { was_ready, .. } => *was_ready,
        }
    }

    /// Restarts its timers: the supervisor was stalled, so silence until `now` says nothing about
    /// the child.
    pub(super) fn restart_timers(&mut self, now: Duration) {
        self.last_heartbeat = now;
        if let Phase::Starting { since } = &mut self.phase {
            *since = now;
        }
    }

    pub(super) fn record_measurements(&mut self, tasks: u64, rss: Option<u64>) {
        self.tasks = tasks;
        self.rss = rss.unwrap_or(self.rss);
    }

    /// Returns why the child counts as hung at `now`, if it does.
    pub(super) fn detect_hang(&self, policy: &GroupPolicy, now: Duration) -> Option<HangKind> {
        let (at, hang) = self.hang_deadline(policy)?;
        (at <= now).then_some(hang)
    }

    /// Returns when the child counts as hung if nothing is heard from it until then.
    pub(super) fn hang_deadline(&self, policy: &GroupPolicy) -> Option<(Duration, HangKind)> {
        let GroupPolicy {
            patience,
            start_within,
            ..
        } = policy;
        let stopped = self
            .suspended
            .and_then(|since| Some((since + (*patience)?, HangKind::Suspended)));
        match self.phase {
            Phase::Starting { since } => {
                stopped.or(start_within.map(|within| (since + within, HangKind::Unready)))
            }
            Phase::Ready { .. } => stopped
                .or(patience.map(|patience| (self.last_heartbeat + patience, HangKind::Silent))),
            // The staged stop has its own deadlines.
            Phase::Stopping { .. } => None,
        }
    }

    /// Returns when the child needs attention if nothing happens before.
    pub(super) fn next_deadline(&self, policy: &GroupPolicy, now: Duration) -> Option<Duration> {
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
    pub(super) fn give_up_at(&self) -> Option<Duration> {
        self.killed.map(|at| at + KILL_TIMEOUT)
    }

    /// Returns whether the child has started its maximum number of tasks.
    pub(super) fn has_reached_task_limit(&self) -> bool {
        self.recycle_limits
            .tasks
            .is_some_and(|most| self.tasks >= most)
    }

    /// Returns why the child must be recycled, if it must.
    pub(super) fn recycle_reason(&self, now: Duration) -> Option<StopReason> {
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
