//! What has happened.

use std::{collections::BTreeMap, time::Duration};

use super::{
    Braking, Census, ChildId, Effect, End, Event, GroupId, Notice, Policy, Restart, Seat, Why,
    child::{Child, Phase, SETTLED},
    group::Group,
};
use crate::stop::Stage;

/// What is kept of all groups.
#[derive(Debug)]
pub struct Core {
    pub(super) groups: Vec<Group>,
    pub(super) children: BTreeMap<ChildId, Child>,
    pub(super) next: u64,
    /// How often everybody was asked to stop.
    pub(super) asked: u32,
    pub(super) effects: Vec<Effect>,
}

impl Core {
    /// Nothing is started yet.
    pub fn new(policies: impl IntoIterator<Item = Policy>) -> Self {
        let groups = policies.into_iter().map(Group::new).collect();
        Self { groups, children: BTreeMap::new(), next: 0, asked: 0, effects: Vec::new() }
    }

    /// What to do about something that has happened.
    pub fn on(&mut self, event: Event, now: Duration) -> Vec<Effect> {
        self.heed(event, now);
        self.go_on(now);
        std::mem::take(&mut self.effects)
    }

    /// Notes that something has happened. What to do about it is said with the next [`on`](Self::on): for many things at once.
    pub fn note(&mut self, event: Event, now: Duration) {
        self.heed(event, now);
    }

    /// Takes charge of a child that somebody else has started, and is ready as far as anybody knows.
    pub fn adopt(&mut self, group: GroupId, now: Duration) -> ChildId {
        let number = self.groups[group.0].seat_for_another();
        let id = self.add(Seat { group, number }, now);
        self.with(id, |child| child.phase = Phase::Ready { since: now });
        if self.asked > 0 {
            self.end(id, Why::Asked, now);
        }
        id
    }

    /// When there is something to be done if nothing happens before.
    pub fn wake_at(&self, now: Duration) -> Option<Duration> {
        let of_children = self.children.values().map(|child| {
            let policy = &self.groups[child.seat.group.0].policy;
            child.look_at(policy, now)
        });
        let of_groups = (0..self.groups.len()).map(GroupId).flat_map(|id| {
            let group = &self.groups[id.0];
            let released = if self.asked == 0 { group.released_at(&self.census(id), now) } else { None };
            [released, group.stop.deadline()]
        });
        of_groups.chain(of_children).flatten().min()
    }

    /// Whether all were asked to stop, and none is left.
    pub fn is_over(&self) -> bool {
        self.asked > 0 && self.children.is_empty()
    }

    /// Whether all were asked to stop, and those that are left were killed long enough ago to be left to the kernel.
    pub fn is_over_but_for_the_kernel(&self, now: Duration) -> bool {
        self.asked > 0 && self.children.values().all(|child| child.dies_by().is_some_and(|by| by <= now))
    }

    /// How often everybody was asked to stop.
    pub fn asked(&self) -> u32 {
        self.asked
    }

    /// How far a group was asked to stop, also if nobody is in it.
    pub fn stage(&self, group: GroupId) -> Stage {
        self.groups[group.0].stop.stage()
    }

    /// Until when nobody of a group is started, if it is held back [as one](super::Braking::Group).
    pub fn held_until(&self, group: GroupId, now: Duration) -> Option<Duration> {
        self.groups[group.0].held_until(now)
    }

    /// How many children a group has.
    pub fn census(&self, group: GroupId) -> Census {
        let mut census = self.groups[group.0].empty_census();
        for child in self.children.values().filter(|child| child.seat.group == group) {
            match child.phase {
                Phase::Starting { .. } => census.starting += 1,
                Phase::Ready { .. } => census.ready += 1,
                Phase::Stopping { .. } => census.stopping += 1,
            }
        }
        census
    }

    /// The seat of a child that is not gone.
    pub fn seat_of(&self, child: ChildId) -> Option<Seat> {
        self.children.get(&child).map(|child| child.seat)
    }

    /// Why a child is to end, if it is.
    pub fn why_of(&self, child: ChildId) -> Option<Why> {
        match self.children.get(&child)?.phase {
            Phase::Stopping { why, .. } => Some(why),
            _ => None,
        }
    }

    pub(super) fn group(&mut self, group: GroupId) -> &mut Group {
        &mut self.groups[group.0]
    }

    fn heed(&mut self, event: Event, now: Duration) {
        match event {
            Event::Time => {}
            Event::Ready(id) => self.ready(id, now),
            Event::Gone(id, end) => self.gone(id, end, now),
            Event::Refused(group) => {
                if self.group(group).policy.brake == Braking::Group {
                    self.brake(Seat { group, number: 0 }, now);
                }
            }
            Event::Late => self.children.values_mut().for_each(|child| child.spare(now)),
            Event::Marked(id) => self.with(id, |child| child.marked = now),
            Event::Suspended(id) => self.with(id, |child| child.suspended = child.suspended.or(Some(now))),
            Event::Continued(id) => self.with(id, |child| {
                // It has had no time to get on.
                (child.suspended, child.marked) = (None, now);
            }),
            Event::Hung(id, hang) => self.end_if_running(id, Why::Hung(hang), now),
            Event::Broken(id) => self.end_if_running(id, Why::Broken, now),
            Event::Measured { child: id, tasks, rss } => self.with(id, |child| child.measured(tasks, rss)),
            Event::Scale(group, replicas) => self.group(group).scale(replicas),
            Event::Turn(group, on) => self.group(group).turn(on),
            Event::Renew(group) => {
                let of_group = self.children.values_mut().filter(|child| child.seat.group == group);
                of_group.for_each(|child| child.outdated = true);
            }
            Event::Patience(group, policy) => self.group(group).stop_like(policy),
            Event::Restored => self.groups.iter_mut().for_each(Group::release),
            Event::Stop => self.stop(now),
        }
    }

    fn with(&mut self, id: ChildId, change: impl FnOnce(&mut Child)) {
        if let Some(child) = self.children.get_mut(&id) {
            change(child);
        }
    }

    pub(super) fn tell(&mut self, id: ChildId, stage: Stage, now: Duration) {
        self.effects.push(Effect::Tell(id, stage));
        if stage == Stage::Killing {
            self.with(id, |child| child.killed = Some(now));
        }
    }

    fn end_if_running(&mut self, id: ChildId, why: Why, now: Duration) {
        if self.children.get(&id).is_some_and(|child| !child.is_stopping()) {
            self.end(id, why, now);
        }
    }

    fn ready(&mut self, id: ChildId, now: Duration) {
        let Some(child) = self.children.get_mut(&id).filter(|child| child.is_starting()) else { return };
        child.marked = now;
        let seat = child.seat;
        let trouble = self.groups[seat.group.0].trouble(seat.number);
        // Where they die after they are ready, that one is ready again says nothing.
        if !trouble.is_loop() && trouble.brake.ready() {
            self.effects.push(Effect::Say(Notice::Recovered(seat)));
        }
        child.settled = !trouble.is_there();
        child.phase = Phase::Ready { since: now };
    }

    fn gone(&mut self, id: ChildId, end: End, now: Duration) {
        let Some(child) = self.children.remove(&id) else { return };
        let (seat, ready) = (child.seat, child.ready_since());
        let group = &mut self.groups[seat.group.0];
        group.vacate(seat.number);
        let why = match child.phase {
            Phase::Stopping { why, .. } => Some(why),
            // It keeps to its bound by itself, and has left before it was seen that it had reached it.
            Phase::Ready { .. } if end == End::Well && child.is_spent() => Some(Why::Tasks),
            _ => None,
        };
        let end = match why {
            // It did as it was told, however it did.
            Some(Why::Asked | Why::Tasks | Why::Age | Why::Rss | Why::Outdated) => return,
            Some(Why::Hung(_) | Why::Broken) => End::Badly,
            None => end,
        };
        let (comes_again, counts) = match group.policy.restart {
            Restart::Always => (true, true),
            Restart::OnFailure => (end == End::Badly, true),
            Restart::Never => (false, false),
            Restart::OnDemand => (true, end == End::Badly),
        };
        if !comes_again {
            group.retire(seat.number);
            self.effects.push(Effect::Say(Notice::Retired(id)));
            return;
        }
        if !counts {
            // A child that has done what it was there for ends a crash loop: such children may never stay for long. One that was there before the last
            // death says nothing of that.
            let trouble = group.trouble(seat.number);
            if ready.is_some() && trouble.is_loop_before(child.born) && trouble.is_over() {
                self.effects.push(Effect::Say(Notice::Recovered(seat)));
            }
            return;
        }
        if why.is_none() && !group.is_on_demand() {
            self.effects.push(Effect::Say(Notice::Replaced(id)));
        }
        let trouble = group.trouble(seat.number);
        let brakes = match ready {
            None => true,
            Some(since) if now.saturating_sub(since) < SETTLED => trouble.ended_early(child.born, now),
            Some(_) => {
                trouble.is_over();
                false
            }
        };
        if brakes {
            self.brake(seat, now);
        }
    }

    /// Holds back whoever would be next.
    fn brake(&mut self, seat: Seat, now: Duration) {
        if let Some(step) = self.group(seat.group).trouble(seat.number).brake.died(now) {
            let notice = Notice::Braking { seat, pause: step.pause, number: step.number };
            self.effects.push(Effect::Say(notice));
        }
    }

    fn stop(&mut self, now: Duration) {
        self.asked += 1;
        for group in &mut self.groups {
            group.stop.request(now);
        }
        let ids: Vec<ChildId> = self.children.keys().copied().collect();
        for id in ids {
            let child = self.children.get_mut(&id).expect("nobody has left meanwhile");
            let all = self.groups[child.seat.group.0].stop.stage();
            match &mut child.phase {
                // One that stops already, for a reason of its own, is as far as the others at least, and need not be ahead of them.
                Phase::Stopping { stop, .. } => {
                    let (before, stage) = (stop.stage(), stop.reach(all, now));
                    if stage != before {
                        self.tell(id, stage, now);
                    }
                }
                _ => self.end(id, Why::Asked, now),
            }
        }
    }
}
