//! What follows from what has happened.

use std::time::Duration;

use super::{
    ChildId, Core, Effect, GroupId, Notice, Seat, Why,
    child::{Child, Phase, SETTLED},
};
use crate::stop::{Stage, Stop};

impl Core {
    pub(super) fn go_on(&mut self, now: Duration) {
        self.look_at_those_due(now);
        if self.asked == 0 {
            self.vacate(now);
            self.recycle(now);
            self.fill(now);
        }
    }

    fn look_at_those_due(&mut self, now: Duration) {
        while let Some((_, id)) = self.alarms.first().copied().filter(|(at, _)| *at <= now) {
            self.look_at(id, now);
        }
        for group in &mut self.groups {
            group.stop.tick(now);
        }
    }

    /// Looks at a child at the time that it was to be looked at.
    fn look_at(&mut self, id: ChildId, now: Duration) {
        let child = self.children.get_mut(&id).expect("the alarms of those that are gone are gone");
        let group = &mut self.groups[child.seat.group.0];
        if let Phase::Stopping { stop, .. } = &mut child.phase {
            self.effects.extend(stop.tick(now).map(|stage| Effect::Tell(id, stage)));
            return self.arm(id, now);
        }
        if let Some(hang) = child.hang(&group.policy, now) {
            return self.end(id, Why::Hung(hang), now);
        }
        if !child.settled && child.ready_since().is_some_and(|since| since + SETTLED <= now) {
            child.settled = true;
            let trouble = group.trouble(child.seat.number);
            if trouble.is_over() {
                self.effects.push(Effect::Say(Notice::Recovered(child.seat)));
            }
        }
        self.judge(id, now);
        self.arm(id, now);
    }

    /// Sets the alarm of a child to when it has to be looked at.
    pub(super) fn arm(&mut self, id: ChildId, now: Duration) {
        let Some(child) = self.children.get_mut(&id) else { return };
        let at = child.look_at(&self.groups[child.seat.group.0].policy, now);
        if at != child.alarm {
            if let Some(before) = std::mem::replace(&mut child.alarm, at) {
                self.alarms.remove(&(before, id));
            }
            self.alarms.extend(at.map(|at| (at, id)));
        }
    }

    /// Notes whether a child is to make room for another.
    pub(super) fn judge(&mut self, id: ChildId, now: Duration) {
        let Some(child) = self.children.get(&id) else { return };
        let due = &mut self.groups[child.seat.group.0].due;
        if child.recycle(now).is_some() {
            due.insert(id);
        } else if !due.is_empty() {
            due.remove(&id);
        }
    }

    /// Brings a child into another phase.
    pub(super) fn enter(&mut self, id: ChildId, phase: Phase, now: Duration) {
        let child = self.children.get_mut(&id).expect("asked for one that is there");
        let group = &mut self.groups[child.seat.group.0];
        group.leaves(&child.phase);
        group.enters(&phase);
        child.phase = phase;
        self.arm(id, now);
    }

    /// Ends a child: in stages, or faster if it would not heed them, or what it does is worth nothing.
    pub(super) fn end(&mut self, id: ChildId, why: Why, now: Duration) {
        let child = &self.children[&id];
        let (group, was_ready) = (&mut self.groups[child.seat.group.0], child.ready_since());
        group.due.remove(&id);
        let mut stop = Stop::new(group.policy.stop);
        let stage = match why {
            Why::Hung(_) => stop.kill(now),
            Why::Broken => stop.reach(Stage::Terminating, now),
            _ => stop.request(now),
        };
        self.enter(id, Phase::Stopping { stop, why, was_ready }, now);
        self.effects.extend([Effect::Say(Notice::Ending(id, why)), Effect::Tell(id, stage)]);
    }

    /// Ends those in seats that there are not to be any more.
    fn vacate(&mut self, now: Duration) {
        if !self.groups.iter().any(|group| group.has_shrunk) {
            return;
        }
        let is_spare =
            |child: &Child| !child.is_stopping() && self.groups[child.seat.group.0].is_spare(child.seat.number);
        let spare: Vec<ChildId> =
            self.children.iter().filter(|(_, child)| is_spare(child)).map(|(id, _)| *id).collect();
        for id in spare {
            self.end(id, Why::Asked, now);
        }
        self.groups.iter_mut().for_each(|group| group.has_shrunk = false);
    }

    /// Lets one of a group at a time make room for another, and only where all others are there that can be.
    fn recycle(&mut self, now: Duration) {
        for number in 0..self.groups.len() {
            let due = self.groups[number].due.first().copied();
            if let Some(id) = due.filter(|_| self.is_complete(GroupId(number)))
                && let Some(why) = self.children[&id].recycle(now)
            {
                self.end(id, why, now);
            }
        }
    }

    /// Whether there is a ready child in every seat that is sound.
    fn is_complete(&self, group: GroupId) -> bool {
        let of = &self.groups[group.0];
        let is_ready = |child: &&Child| matches!(child.phase, Phase::Ready { .. }) && of.is_sound(child.seat.number);
        let of_group = self.children.values().filter(|child| child.seat.group == group);
        of_group.filter(is_ready).count() >= of.sound()
    }

    /// Starts who is missing.
    fn fill(&mut self, now: Duration) {
        for group in &mut self.groups {
            group.furnish();
            group.was_up |= group.is_up();
        }
        for group in (0..self.groups.len()).map(GroupId) {
            if !self.groups[group.0].policy.after.iter().all(|before| self.groups[before.0].was_up) {
                continue;
            }
            while let Some(number) = self.groups[group.0].next_seat(now) {
                self.start(Seat { group, number }, now);
            }
        }
    }

    fn start(&mut self, seat: Seat, now: Duration) {
        self.group(seat.group).sit(seat.number);
        let id = self.add(seat, now);
        self.effects.push(Effect::Start(id, seat));
    }

    /// A child that is starting.
    pub(super) fn add(&mut self, seat: Seat, now: Duration) -> ChildId {
        let id = ChildId(self.next);
        self.next += 1;
        let group = self.group(seat.group);
        let child = Child::new(seat, group.policy.recycle.for_child(id.0), now);
        group.enters(&child.phase);
        self.children.insert(id, child);
        self.arm(id, now);
        id
    }
}
