//! `Supervisor`: applies events to its state. `transitions.rs` derives what follows.

use std::{collections::BTreeMap, time::Duration};

use raddle_model::stop::StopStage;

use crate::{
    BackoffScope, ChildExit, ChildId, GroupCounts, GroupId, GroupPolicy, ReplicaSlot,
    RestartPolicy, StopReason, SupervisorEffect, SupervisorEvent, SupervisorNotice,
    child::{Child, Phase, STABLE_AFTER},
    group::Group,
};

/// The state of all groups and children.
#[derive(Debug)]
pub struct Supervisor {
    pub(crate) groups: Vec<Group>,
    pub(crate) children: BTreeMap<ChildId, Child>,
    pub(crate) next: u64,
    /// How often a stop was requested.
    pub(crate) stop_requests: u32,
    pub(crate) effects: Vec<SupervisorEffect>,
}

impl Supervisor {
    /// Creates a supervisor that has not started any children.
    pub fn new(policies: impl IntoIterator<Item = GroupPolicy>) -> Self {
        let groups = policies.into_iter().map(Group::new).collect();
        Self {
            groups,
            children: BTreeMap::new(),
            next: 0,
            stop_requests: 0,
            effects: Vec::new(),
        }
    }

    /// Applies an event, and returns the effects to carry out.
    pub fn on(&mut self, event: SupervisorEvent, now: Duration) -> Vec<SupervisorEffect> {
        self.apply_event(event, now);
        self.advance(now);
        std::mem::take(&mut self.effects)
    }

    /// Applies an event without computing effects. The next [`on`](Self::on) returns them, for
    /// several events at once.
    pub fn note(&mut self, event: SupervisorEvent, now: Duration) {
        self.apply_event(event, now);
    }

    /// Adopts a child that another process started. It is assumed to be ready.
    pub fn adopt(&mut self, group: GroupId, now: Duration) -> ChildId {
        let number = self.groups[group.0].slot_for_adopted();
        let id = self.add_child(ReplicaSlot { group, number }, now);
        self.update_child(id, |child| child.phase = Phase::Ready { since: now });
        if self.stop_requests > 0 {
            self.stop_child(id, StopReason::Requested, now);
        }
        id
    }

    /// Returns when [`SupervisorEvent::Time`] must be sent if nothing else happens.
    pub fn wake_at(&self, now: Duration) -> Option<Duration> {
        let of_children = self.children.values().map(|child| {
            let policy = &self.groups[child.slot.group.0].policy;
            child.next_deadline(policy, now)
        });
        let of_groups = (0..self.groups.len()).map(GroupId).flat_map(|id| {
            let group = &self.groups[id.0];
            let released = if self.stop_requests == 0 {
                group.next_release(&self.census(id), now)
            } else {
                None
            };
            [released, group.stop.deadline()]
        });
        of_groups.chain(of_children).flatten().min()
    }

    /// Returns whether a stop was requested and no children are left.
    pub fn is_over(&self) -> bool {
        self.stop_requests > 0 && self.children.is_empty()
    }

    /// Returns whether a stop was requested and the remaining children were killed so long ago that
    /// the supervisor leaves them to the kernel.
    pub fn is_over_but_for_the_kernel(&self, now: Duration) -> bool {
        self.stop_requests > 0
            && self
                .children
                .values()
                .all(|child| child.give_up_at().is_some_and(|by| by <= now))
    }

    /// Returns how often a stop was requested.
    pub fn asked(&self) -> u32 {
        self.stop_requests
    }

    /// Returns the stop stage of a group, also if it is empty.
    pub fn stage(&self, group: GroupId) -> StopStage {
        self.groups[group.0].stop.stage()
    }

    /// Returns until when no child of a group is started, if the group backs off [as a
    /// whole](super::BackoffScope::Group).
    pub fn held_until(&self, group: GroupId, now: Duration) -> Option<Duration> {
        self.groups[group.0].held_until(now)
    }

    /// Counts the children of a group.
    pub fn census(&self, group: GroupId) -> GroupCounts {
        let mut counts = self.groups[group.0].empty_counts();
        for child in self
            .children
            .values()
            .filter(|child| child.slot.group == group)
        {
            match child.phase {
                Phase::Starting { .. } => counts.starting += 1,
                Phase::Ready { .. } => counts.ready += 1,
                Phase::Stopping { .. } => counts.stopping += 1,
            }
        }
        counts
    }

    /// Returns the slot of a child that has not exited.
    pub fn seat_of(&self, child: ChildId) -> Option<ReplicaSlot> {
        self.children.get(&child).map(|child| child.slot)
    }

    /// Returns why a child is stopping, if it is.
    pub fn why_of(&self, child: ChildId) -> Option<StopReason> {
        match self.children.get(&child)?.phase {
            Phase::Stopping { reason, .. } => Some(reason),
            _ => None,
        }
    }

    pub(crate) fn group(&mut self, group: GroupId) -> &mut Group {
        &mut self.groups[group.0]
    }

    fn apply_event(&mut self, event: SupervisorEvent, now: Duration) {
        match event {
            SupervisorEvent::Time => {}
            SupervisorEvent::Ready(id) => self.mark_ready(id, now),
            SupervisorEvent::Exited(id, end) => self.mark_exited(id, end, now),
            SupervisorEvent::Refused(group) => {
                if self.group(group).policy.backoff_scope == BackoffScope::Group {
                    self.back_off(ReplicaSlot { group, number: 0 }, now);
                }
            }
            SupervisorEvent::Stalled => self
                .children
                .values_mut()
                .for_each(|child| child.restart_timers(now)),
            SupervisorEvent::Heartbeat(id) => {
                self.update_child(id, |child| child.last_heartbeat = now)
            }
            SupervisorEvent::Suspended(id) => {
                self.update_child(id, |child| child.suspended = child.suspended.or(Some(now)))
            }
            SupervisorEvent::Continued(id) => self.update_child(id, |child| {
                // It could not send heartbeats while it was suspended.
                (child.suspended, child.last_heartbeat) = (None, now);
            }),
            SupervisorEvent::Hung(id, hang) => {
                self.stop_child_if_running(id, StopReason::Hung(hang), now)
            }
            SupervisorEvent::Broken(id) => self.stop_child_if_running(id, StopReason::Broken, now),
            SupervisorEvent::Measured {
                child: id,
                tasks,
                rss,
            } => self.update_child(id, |child| child.record_measurements(tasks, rss)),
            SupervisorEvent::Scale(group, replicas) => self.group(group).scale(replicas),
            SupervisorEvent::Switch(group, on) => self.group(group).switch(on),
            SupervisorEvent::Renew(group) => {
                let of_group = self
                    .children
                    .values_mut()
                    .filter(|child| child.slot.group == group);
                of_group.for_each(|child| child.outdated = true);
            }
            SupervisorEvent::SetStopPolicy(group, policy) => {
                self.group(group).set_stop_policy(policy)
            }
            SupervisorEvent::Restored => self.groups.iter_mut().for_each(Group::release),
            SupervisorEvent::Stop => self.request_stop(now),
        }
    }

    fn update_child(&mut self, id: ChildId, change: impl FnOnce(&mut Child)) {
        if let Some(child) = self.children.get_mut(&id) {
            change(child);
        }
    }

    pub(crate) fn set_stop_stage(&mut self, id: ChildId, stage: StopStage, now: Duration) {
        self.effects.push(SupervisorEffect::SetStopStage(id, stage));
        if stage == StopStage::Killing {
            self.update_child(id, |child| child.killed = Some(now));
        }
    }

    fn stop_child_if_running(&mut self, id: ChildId, reason: StopReason, now: Duration) {
        if self
            .children
            .get(&id)
            .is_some_and(|child| !child.is_stopping())
        {
            self.stop_child(id, reason, now);
        }
    }

    fn mark_ready(&mut self, id: ChildId, now: Duration) {
        let Some(child) = self
            .children
            .get_mut(&id)
            .filter(|child| child.is_starting())
        else {
            return;
        };
        child.last_heartbeat = now;
        let slot = child.slot;
        let failures = self.groups[slot.group.0].failures(slot.number);
        // In a loop of children that die after they are ready, one that becomes ready proves
        // nothing.
        if !failures.is_loop() && failures.backoff.ready() {
            self.effects
                .push(SupervisorEffect::Notify(SupervisorNotice::Recovered(slot)));
        }
        child.proven_stable = !failures.is_suspect();
        child.phase = Phase::Ready { since: now };
    }

    fn mark_exited(&mut self, id: ChildId, end: ChildExit, now: Duration) {
        let Some(child) = self.children.remove(&id) else {
            return;
        };
        let (slot, ready) = (child.slot, child.ready_since());
        let group = &mut self.groups[slot.group.0];
        group.free_slot(slot.number);
        let reason = match child.phase {
            Phase::Stopping { reason, .. } => Some(reason),
            // The child enforces its task limit itself, and exited before the supervisor saw that
            // it was reached.
            Phase::Ready { .. } if end == ChildExit::Success && child.has_reached_task_limit() => {
                Some(StopReason::Tasks)
            }
            _ => None,
        };
        let end = match reason {
            // The child stopped as requested, whatever its exit status.
            Some(
                StopReason::Requested
                | StopReason::Tasks
                | StopReason::Age
                | StopReason::Rss
                | StopReason::Outdated,
            ) => {
                return;
            }
            Some(StopReason::Hung(_) | StopReason::Broken) => ChildExit::Failure,
            None => end,
        };
        let (comes_again, counts) = match group.policy.restart {
            RestartPolicy::Always => (true, true),
            RestartPolicy::OnFailure => (end == ChildExit::Failure, true),
            RestartPolicy::Never => (false, false),
            RestartPolicy::OnDemand => (true, end == ChildExit::Failure),
        };
        if !comes_again {
            group.retire_slot(slot.number);
            self.effects
                .push(SupervisorEffect::Notify(SupervisorNotice::Retired(id)));
            return;
        }
        if !counts {
            // A child that did its work and exited ends the crash loop: on-demand children may
            // never stay long. A child that was started before the last early exit proves nothing.
            let failures = group.failures(slot.number);
            if ready.is_some() && failures.is_loop_before(child.started_at) && failures.clear() {
                self.effects
                    .push(SupervisorEffect::Notify(SupervisorNotice::Recovered(slot)));
            }
            return;
        }
        if reason.is_none() && !group.is_on_demand() {
            self.effects
                .push(SupervisorEffect::Notify(SupervisorNotice::Replaced(id)));
        }
        let failures = group.failures(slot.number);
        let backs_off = match ready {
            None => true,
            Some(since) if now.saturating_sub(since) < STABLE_AFTER => {
                failures.ended_early(child.started_at, now)
            }
            Some(_) => {
                failures.clear();
                false
            }
        };
        if backs_off {
            self.back_off(slot, now);
        }
    }

    /// Delays the next start in a slot.
    fn back_off(&mut self, slot: ReplicaSlot, now: Duration) {
        if let Some(step) = self
            .group(slot.group)
            .failures(slot.number)
            .backoff
            .died(now)
        {
            let notice = SupervisorNotice::BackingOff {
                slot,
                pause: step.pause,
                number: step.number,
            };
            self.effects.push(SupervisorEffect::Notify(notice));
        }
    }

    fn request_stop(&mut self, now: Duration) {
        self.stop_requests += 1;
        for group in &mut self.groups {
            group.stop.request(now);
        }
        let ids: Vec<ChildId> = self.children.keys().copied().collect();
        for id in ids {
            let child = self
                .children
                .get_mut(&id)
                .expect("the ids were just collected");
            let all = self.groups[child.slot.group.0].stop.stage();
            match &mut child.phase {
                // A child that already stops for another reason must be at least at the group's
                // stage, but is not pushed beyond it.
                Phase::Stopping { stop, .. } => {
                    let (before, stage) = (stop.stage(), stop.reach(all, now));
                    if stage != before {
                        self.set_stop_stage(id, stage, now);
                    }
                }
                _ => self.stop_child(id, StopReason::Requested, now),
            }
        }
    }
}
