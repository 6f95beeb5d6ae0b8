//! Derives what follows from the current state: stops, recycling and starts.

use std::time::Duration;

use raddle_model::stop::{StagedStop, StopStage};

use crate::{
    ChildId, GroupId, ReplicaSlot, StopReason, Supervisor, SupervisorEffect, SupervisorNotice,
    child::{Child, Phase, STABLE_AFTER},
};

impl Supervisor {
    pub(crate) fn advance(&mut self, now: Duration) {
        let ids: Vec<ChildId> = self.children.keys().copied().collect();
        ids.into_iter().for_each(|id| self.check_child(id, now));
        for group in &mut self.groups {
            group.stop.tick(now);
        }
        if self.stop_requests == 0 {
            self.stop_spare_children(now);
            self.recycle_children(now);
            self.start_missing(now);
        }
    }

    /// Applies the passage of time to a child.
    fn check_child(&mut self, id: ChildId, now: Duration) {
        let child = self
            .children
            .get_mut(&id)
            .expect("callers pass the id of a live child");
        let group = &mut self.groups[child.slot.group.0];
        if let Phase::Stopping { stop, .. } = &mut child.phase {
            if let Some(stage) = stop.tick(now) {
                self.set_stop_stage(id, stage, now);
            }
        } else if let Some(hang) = child.detect_hang(&group.policy, now) {
            self.stop_child(id, StopReason::Hung(hang), now);
        } else if !child.proven_stable
            && child
                .ready_since()
                .is_some_and(|since| since + STABLE_AFTER <= now)
        {
            child.proven_stable = true;
            if group.failures(child.slot.number).clear() {
                self.effects
                    .push(SupervisorEffect::Notify(SupervisorNotice::Recovered(
                        child.slot,
                    )));
            }
        }
    }

    /// Stops a child: in stages, or directly in a later stage if it hangs or its work is worthless.
    pub(crate) fn stop_child(&mut self, id: ChildId, reason: StopReason, now: Duration) {
        let child = self
            .children
            .get_mut(&id)
            .expect("callers pass the id of a live child");
        let was_ready = child.ready_since();
        let mut stop = StagedStop::new(self.groups[child.slot.group.0].policy.stop);
        let stage = match reason {
            StopReason::Hung(_) => stop.kill(now),
            StopReason::Broken => stop.reach(StopStage::Terminating, now),
            _ => stop.request(now),
        };
        child.phase = Phase::Stopping {
            stop,
            reason,
            was_ready,
        };
        self.effects
            .push(SupervisorEffect::Notify(SupervisorNotice::Stopping(
                id, reason,
            )));
        self.set_stop_stage(id, stage, now);
    }

    /// Stops children in slots that the group no longer has.
    fn stop_spare_children(&mut self, now: Duration) {
        let is_spare = |child: &Child| {
            !child.is_stopping() && self.groups[child.slot.group.0].is_spare(child.slot.number)
        };
        let spare: Vec<ChildId> = self
            .children
            .iter()
            .filter(|(_, child)| is_spare(child))
            .map(|(id, _)| *id)
            .collect();
        for id in spare {
            self.stop_child(id, StopReason::Requested, now);
        }
    }

    /// Recycles one child of a group at a time, and only if all other healthy slots are ready.
    fn recycle_children(&mut self, now: Duration) {
        for group in (0..self.groups.len()).map(GroupId) {
            let mut of_group = self
                .children
                .iter()
                .filter(|(_, child)| child.slot.group == group);
            let due = of_group.find_map(|(id, child)| Some((*id, child.recycle_reason(now)?)));
            if let Some((id, reason)) = due.filter(|_| self.is_fully_ready(group)) {
                self.stop_child(id, reason, now);
            }
        }
    }

    /// Returns whether every healthy slot has a ready child.
    fn is_fully_ready(&self, group: GroupId) -> bool {
        let state = &self.groups[group.0];
        let is_ready = |child: &&Child| child.is_ready() && state.is_healthy(child.slot.number);
        let of_group = self
            .children
            .values()
            .filter(|child| child.slot.group == group);
        of_group.filter(is_ready).count() >= state.healthy_slots()
    }

    /// Starts missing children.
    fn start_missing(&mut self, now: Duration) {
        for group in (0..self.groups.len()).map(GroupId) {
            let counts = self.census(group);
            let state = &mut self.groups[group.0];
            state.add_missing_slots();
            state.was_up |= counts.ready >= counts.wanted;
        }
        for group in (0..self.groups.len()).map(GroupId) {
            if !self.groups[group.0]
                .policy
                .after
                .iter()
                .all(|before| self.groups[before.0].was_up)
            {
                continue;
            }
            while let Some(number) = self.groups[group.0].next_free_slot(&self.census(group), now) {
                self.groups[group.0].occupy(number);
                let slot = ReplicaSlot { group, number };
                let id = self.add_child(slot, now);
                self.effects.push(SupervisorEffect::Start(id, slot));
            }
        }
    }

    /// Adds a starting child.
    pub(crate) fn add_child(&mut self, slot: ReplicaSlot, now: Duration) -> ChildId {
        let id = ChildId(self.next);
        self.next += 1;
        let recycle = self.group(slot.group).policy.recycle.for_child(id.0);
        self.children.insert(id, Child::new(slot, recycle, now));
        id
    }
}
