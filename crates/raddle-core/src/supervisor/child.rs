//! One child: starting, ready, stopping.

use std::time::Duration;

use super::{Hang, Policy, Recycle, Seat, Why};
use crate::stop::Stop;

#[derive(Clone, Debug)]
pub(super) struct Child {
    pub(super) seat: Seat,
    pub(super) born: Duration,
    pub(super) phase: Phase,
    /// When it was last known to get on.
    pub(super) marked: Duration,
    /// Since when its process stands still.
    pub(super) suspended: Option<Duration>,
    pub(super) bounds: Recycle,
    tasks: u64,
    rss: u64,
    /// What it was started from has changed since.
    pub(super) outdated: bool,
    /// Whether it is known to stay, or nobody has to find out.
    pub(super) settled: bool,
    /// When it was killed.
    pub(super) killed: Option<Duration>,
}

/// How long a child has to be ready until its seat is believed to be sound again.
pub(super) const SETTLED: Duration = Duration::from_secs(10);

/// How long what is killed may take to be gone. What the kernel does not let go of by then is left to it.
const KILL_WITHIN: Duration = Duration::from_secs(10);

#[derive(Clone, Debug)]
pub(super) enum Phase {
    /// Since then, as far as it could.
    Starting {
        since: Duration,
    },
    Ready {
        since: Duration,
    },
    Stopping {
        stop: Stop,
        why: Why,
        was_ready: Option<Duration>,
    },
}

impl Child {
    pub(super) fn new(seat: Seat, bounds: Recycle, now: Duration) -> Self {
        Self {
            seat,
            born: now,
            phase: Phase::Starting { since: now },
            marked: now,
            suspended: None,
            bounds,
            tasks: 0,
            rss: 0,
            outdated: false,
            settled: true,
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

    /// Since when it was ready, also if it stops by now.
    pub(super) fn ready_since(&self) -> Option<Duration> {
        match &self.phase {
            Phase::Starting { .. } => None,
            Phase::Ready { since } => Some(*since),
            Phase::Stopping { was_ready, .. } => *was_ready,
        }
    }

    /// Whatever was not heard of it until now says nothing: it has its time once more.
    pub(super) fn spare(&mut self, now: Duration) {
        self.marked = now;
        if let Phase::Starting { since } = &mut self.phase {
            *since = now;
        }
    }

    pub(super) fn measured(&mut self, tasks: u64, rss: Option<u64>) {
        self.tasks = tasks;
        self.rss = rss.unwrap_or(self.rss);
    }

    /// Whether it has to be ended at once, and why.
    pub(super) fn hang(&self, policy: &Policy, now: Duration) -> Option<Hang> {
        let (at, hang) = self.hang_at(policy)?;
        (at <= now).then_some(hang)
    }

    /// When it counts as hung if nothing is heard of it until then.
    pub(super) fn hang_at(&self, policy: &Policy) -> Option<(Duration, Hang)> {
        let Policy { patience, start_within, .. } = policy;
        let stopped = self.suspended.and_then(|since| Some((since + (*patience)?, Hang::Suspended)));
        match self.phase {
            Phase::Starting { since } => stopped.or(start_within.map(|within| (since + within, Hang::Unready))),
            Phase::Ready { .. } => stopped.or(patience.map(|patience| (self.marked + patience, Hang::Silent))),
            // Its stop has an end of its own.
            Phase::Stopping { .. } => None,
        }
    }

    /// When it has to be looked at if nothing happens before.
    pub(super) fn look_at(&self, policy: &Policy, now: Duration) -> Option<Duration> {
        let hang = self.hang_at(policy).map(|(at, _)| at);
        match &self.phase {
            Phase::Starting { .. } => hang,
            Phase::Ready { since } => {
                let settled = (!self.settled).then_some(*since + SETTLED);
                let age = self.bounds.age.map(|age| self.born + age).filter(|at| *at > now);
                [hang, settled, age].into_iter().flatten().min()
            }
            Phase::Stopping { stop, .. } => stop.deadline().or(self.dies_by().filter(|at| *at > now)),
        }
    }

    /// When it is left to the kernel.
    pub(super) fn dies_by(&self) -> Option<Duration> {
        self.killed.map(|at| at + KILL_WITHIN)
    }

    /// Whether it has begun as many tasks as it was to.
    pub(super) fn is_spent(&self) -> bool {
        self.bounds.tasks.is_some_and(|most| self.tasks >= most)
    }

    /// Whether it should make room for another, and why.
    pub(super) fn recycle(&self, now: Duration) -> Option<Why> {
        let Phase::Ready { .. } = self.phase else { return None };
        let Recycle { age, rss, .. } = self.bounds;
        if self.outdated {
            return Some(Why::Outdated);
        }
        if self.is_spent() {
            return Some(Why::Tasks);
        }
        if rss.is_some_and(|most| self.rss >= most) {
            return Some(Why::Rss);
        }
        age.is_some_and(|most| self.born + most <= now).then_some(Why::Age)
    }
}
