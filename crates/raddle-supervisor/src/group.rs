//! State of one group: its slots and their backoff.

use std::time::Duration;

use raddle_model::stop::{StagedStop, StopPolicy, StopStage};

use crate::{BackoffScope, GroupPolicy, RestartPolicy, crash_loop::CrashLoopBackoff};

/// How many children in a row may exit soon after they are ready before the next start is delayed.
/// A single killed child is replaced immediately; only repeated exits are a crash loop.
const MAX_EARLY_EXITS: u32 = 3;

#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) policy: GroupPolicy,
    slots: Vec<GroupSlot>,
    /// Slot after the one that was filled last. The search starts here, so that a slot whose
    /// children never start does not starve the others.
    next: usize,
    /// Failures of the group, if it backs off as a whole.
    failures: StartFailures,
    /// Whether all replicas have been ready at some time.
    pub(crate) was_up: bool,
    /// Stop stage of the group, also while it is empty.
    pub(crate) stop: StagedStop,
}

#[derive(Debug, Default)]
struct GroupSlot {
    failures: StartFailures,
    /// Whether it has a child.
    taken: bool,
    /// Whether it stays empty.
    retired: bool,
}

/// Detects children that die right after their start.
#[derive(Debug, Default)]
pub(crate) struct StartFailures {
    pub(crate) backoff: CrashLoopBackoff,
    /// Children in a row that were ready only briefly.
    early_exits: u32,
    /// When the last of these exited.
    last_early_exit: Duration,
}

/// The children of a group, by phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupCounts {
    /// Desired number of children.
    pub wanted: usize,
    /// Starting children.
    pub starting: usize,
    /// Ready children.
    pub ready: usize,
    /// Stopping children.
    pub stopping: usize,
    /// Slots that back off because their children die right after their start. At most one if the
    /// group backs off as a whole.
    pub backing_off: usize,
}

impl Group {
    pub(crate) fn new(policy: GroupPolicy) -> Self {
        Self {
            slots: Vec::new(),
            next: 0,
            failures: StartFailures::default(),
            was_up: false,
            stop: StagedStop::new(policy.stop),
            policy,
        }
    }

    /// Returns the counts without children.
    pub(crate) fn empty_counts(&self) -> GroupCounts {
        let backing_off = match self.policy.backoff_scope {
            BackoffScope::Slot => self
                .slots
                .iter()
                .filter(|slot| slot.failures.backoff.is_on())
                .count(),
            BackoffScope::Group => usize::from(self.failures.backoff.is_on()),
        };
        GroupCounts {
            wanted: self.wanted(),
            backing_off,
            ..GroupCounts::default()
        }
    }

    pub(crate) fn wanted(&self) -> usize {
        if self.policy.on {
            self.policy.replicas
        } else {
            0
        }
    }

    /// Returns whether a slot counts as healthy. A slot that backs off or stays empty does not:
    /// waiting for it would keep all others from being recycled.
    pub(crate) fn is_healthy(&self, slot: usize) -> bool {
        slot < self.wanted()
            && self
                .slots
                .get(slot)
                .is_none_or(|state| !state.retired && !state.failures.backoff.is_on())
    }

    /// Counts the healthy slots.
    pub(crate) fn healthy_slots(&self) -> usize {
        (0..self.wanted())
            .filter(|slot| self.is_healthy(*slot))
            .count()
    }

    pub(crate) fn is_on_demand(&self) -> bool {
        self.policy.restart == RestartPolicy::OnDemand
    }

    /// Returns whether a slot must have no child.
    pub(crate) fn is_spare(&self, slot: usize) -> bool {
        if self.is_on_demand() {
            !self.policy.on
        } else {
            slot >= self.wanted()
        }
    }

    /// Returns the failure record of a slot.
    pub(crate) fn failures(&mut self, slot: usize) -> &mut StartFailures {
        match self.policy.backoff_scope {
            BackoffScope::Slot => &mut self.slots[slot].failures,
            BackoffScope::Group => &mut self.failures,
        }
    }

    pub(crate) fn scale(&mut self, replicas: usize) {
        self.policy.replicas = replicas;
    }

    pub(crate) fn switch(&mut self, on: bool) {
        // Dependent groups wait for all replicas again.
        self.was_up &= !on || self.policy.on;
        self.policy.on = on;
        if !on {
            return;
        }
        // Switching a group on resets its backoff and its retired slots.
        self.failures = StartFailures::default();
        self.slots
            .iter_mut()
            .filter(|slot| !slot.taken)
            .for_each(|slot| *slot = GroupSlot::default());
    }

    /// Ends all backoff pauses, until the next child dies.
    pub(crate) fn release(&mut self) {
        self.failures.backoff.release();
        self.slots
            .iter_mut()
            .for_each(|slot| slot.failures.backoff.release());
    }

    pub(crate) fn set_stop_policy(&mut self, policy: StopPolicy) {
        self.policy.stop = policy;
        if self.stop.stage() == StopStage::Running {
            self.stop = StagedStop::new(policy);
        }
    }

    /// Adds slots up to the desired number of children.
    pub(crate) fn add_missing_slots(&mut self) {
        let slots = self.slots.len().max(self.wanted());
        self.slots.resize_with(slots, GroupSlot::default);
    }

    /// Returns an empty slot, if a child may be started in it now. Starts in other groups do not
    /// count: a slow group does not delay the others.
    pub(crate) fn next_free_slot(&self, counts: &GroupCounts, now: Duration) -> Option<usize> {
        let shared = &self.failures.backoff;
        if counts.starting >= shared.max_parallel(self.policy.parallel)
            || self.held_until(now).is_some()
        {
            return None;
        }
        self.empty_slots(counts).find(|slot| {
            self.slots[*slot]
                .failures
                .backoff
                .holds_until(now)
                .is_none()
        })
    }

    /// Returns the end of the current pause, if the group backs off as a whole.
    pub(crate) fn held_until(&self, now: Duration) -> Option<Duration> {
        self.failures.backoff.holds_until(now)
    }

    /// Returns when the next backoff pause ends.
    pub(crate) fn next_release(&self, counts: &GroupCounts, now: Duration) -> Option<Duration> {
        let mut empty_slots = self.empty_slots(counts);
        match self.policy.backoff_scope {
            BackoffScope::Slot => empty_slots
                .filter_map(|slot| self.slots[slot].failures.backoff.holds_until(now))
                .min(),
            BackoffScope::Group => self
                .held_until(now)
                .filter(|_| empty_slots.next().is_some()),
        }
    }

    /// Returns the slots without a child.
    fn empty_slots(&self, counts: &GroupCounts) -> impl Iterator<Item = usize> {
        let live = counts.starting + counts.ready + counts.stopping;
        // On demand, children are not bound to slots: only the total counts.
        let is_full = self.is_on_demand() && live >= self.wanted();
        let end = if is_full {
            0
        } else {
            self.wanted().min(self.slots.len())
        };
        let next = self.next.min(end);
        (next..end)
            .chain(0..next)
            .filter(|slot| self.slots[*slot].is_vacant())
    }

    pub(crate) fn occupy(&mut self, slot: usize) {
        self.slots[slot].taken = true;
        self.next = slot + 1;
    }

    /// Returns a slot for an adopted child.
    pub(crate) fn slot_for_adopted(&mut self) -> usize {
        self.policy.replicas += usize::from(self.is_on_demand());
        let slot = self
            .slots
            .iter()
            .position(GroupSlot::is_vacant)
            .unwrap_or(self.slots.len());
        self.slots
            .resize_with(self.slots.len().max(slot + 1), GroupSlot::default);
        self.slots[slot].taken = true;
        slot
    }

    /// Marks a slot as empty.
    pub(crate) fn free_slot(&mut self, slot: usize) {
        self.slots[slot].taken = false;
        if self.is_on_demand() {
            self.policy.replicas = self.policy.replicas.saturating_sub(1);
        }
    }

    /// Marks a slot as empty for good.
    pub(crate) fn retire_slot(&mut self, slot: usize) {
        self.slots[slot].retired = true;
    }
}

impl GroupSlot {
    fn is_vacant(&self) -> bool {
        !self.taken && !self.retired
    }
}

impl StartFailures {
    /// Records that a child exited soon after it was ready. Returns whether this is a crash loop.
    /// Only successive children count: children that ran at the same time may have been killed
    /// together.
    pub(crate) fn ended_early(&mut self, started_at: Duration, now: Duration) -> bool {
        if started_at >= self.last_early_exit {
            (self.early_exits, self.last_early_exit) = (self.early_exits + 1, now);
        }
        self.is_loop()
    }

    /// Returns whether children exit early again and again.
    pub(crate) fn is_loop(&self) -> bool {
        self.early_exits > MAX_EARLY_EXITS
    }

    /// Returns whether there is a crash loop, and a child that was started at `started_at` came
    /// after its last exit.
    pub(crate) fn is_loop_before(&self, started_at: Duration) -> bool {
        self.is_loop() && started_at >= self.last_early_exit
    }

    /// Records that a child has stayed, which ends the crash loop. Returns whether starts were
    /// delayed.
    pub(crate) fn clear(&mut self) -> bool {
        self.early_exits = 0;
        self.backoff.ready()
    }

    /// Returns whether the next child must prove that it stays.
    pub(crate) fn is_suspect(&self) -> bool {
        self.early_exits > 0 || self.backoff.is_on()
    }
}
