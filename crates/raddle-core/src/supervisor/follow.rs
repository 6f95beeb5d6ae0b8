//! What follows from what has happened.

use std::time::Duration;

use super::{
    ChildId, Core, Effect, GroupId, Notice, Seat, Why,
    child::{Child, Phase, SETTLED},
};
use crate::stop::{Stage, Stop};

impl Core {
    pub(super) fn go_on(&mut self, now: Duration) {
        let ids: Vec<ChildId> = self.children.keys().copied().collect();
        ids.into_iter().for_each(|id| self.look_at(id, now));
        for group in &mut self.groups {
            group.stop.tick(now);
        }
        if self.asked == 0 {
            self.vacate(now);
            self.recycle(now);
            self.fill(now);
        }
    }

    /// What time has made of a child.
    fn look_at(&mut self, id: ChildId, now: Duration) {
        let child = self.children.get_mut(&id).expect("asked for one that is there");
        let group = &mut self.groups[child.seat.group.0];
        if let Phase::Stopping { stop, .. } = &mut child.phase {
            if let Some(stage) = stop.tick(now) {
                self.tell(id, stage, now);
            }
        } else if let Some(hang) = child.hang(&group.policy, now) {
            self.end(id, Why::Hung(hang), now);
        } else if !child.settled && child.ready_since().is_some_and(|since| since + SETTLED <= now) {
            child.settled = true;
            if group.trouble(child.seat.number).is_over() {
                self.effects.push(Effect::Say(Notice::Recovered(child.seat)));
            }
        }
    }

    /// Ends a child: in stages, or faster if it would not heed them, or what it does is worth nothing.
    pub(super) fn end(&mut self, id: ChildId, why: Why, now: Duration) {
        let child = self.children.get_mut(&id).expect("asked for one that is there");
        let was_ready = child.ready_since();
        let mut stop = Stop::new(self.groups[child.seat.group.0].policy.stop);
        let stage = match why {
            Why::Hung(_) => stop.kill(now),
            Why::Broken => stop.reach(Stage::Terminating, now),
            _ => stop.request(now),
        };
        child.phase = Phase::Stopping { stop, why, was_ready };
        self.effects.push(Effect::Say(Notice::Ending(id, why)));
        self.tell(id, stage, now);
    }

    /// Ends those in seats that there are not to be any more.
    fn vacate(&mut self, now: Duration) {
        let is_spare =
            |child: &Child| !child.is_stopping() && self.groups[child.seat.group.0].is_spare(child.seat.number);
        let spare: Vec<ChildId> =
            self.children.iter().filter(|(_, child)| is_spare(child)).map(|(id, _)| *id).collect();
        for id in spare {
            self.end(id, Why::Asked, now);
        }
    }

    /// Lets one of a group at a time make room for another, and only where all others are there that can be.
    fn recycle(&mut self, now: Duration) {
        for group in (0..self.groups.len()).map(GroupId) {
            let mut of_group = self.children.iter().filter(|(_, child)| child.seat.group == group);
            let due = of_group.find_map(|(id, child)| Some((*id, child.recycle(now)?)));
            if let Some((id, why)) = due.filter(|_| self.is_complete(group)) {
                self.end(id, why, now);
            }
        }
    }

    /// Whether there is a ready child in every seat that is sound.
    fn is_complete(&self, group: GroupId) -> bool {
        let of = &self.groups[group.0];
        let is_ready = |child: &&Child| child.is_ready() && of.is_sound(child.seat.number);
        let of_group = self.children.values().filter(|child| child.seat.group == group);
        of_group.filter(is_ready).count() >= of.sound()
    }

    /// Starts who is missing.
    fn fill(&mut self, now: Duration) {
        for group in (0..self.groups.len()).map(GroupId) {
            let census = self.census(group);
            let of = &mut self.groups[group.0];
            of.furnish();
            of.was_up |= census.ready >= census.wanted;
        }
        for group in (0..self.groups.len()).map(GroupId) {
            if !self.groups[group.0].policy.after.iter().all(|before| self.groups[before.0].was_up) {
                continue;
            }
            while let Some(number) = self.groups[group.0].next_seat(&self.census(group), now) {
                self.groups[group.0].sit(number);
                let seat = Seat { group, number };
                let id = self.add(seat, now);
                self.effects.push(Effect::Start(id, seat));
            }
        }
    }

    /// A child that is starting.
    pub(super) fn add(&mut self, seat: Seat, now: Duration) -> ChildId {
        let id = ChildId(self.next);
        self.next += 1;
        let recycle = self.group(seat.group).policy.recycle.for_child(id.0);
        self.children.insert(id, Child::new(seat, recycle, now));
        id
    }
}
