//! The decisions.

use std::{collections::BTreeMap, time::Duration};

use super::{
    ChildId, Effect, End, Event, GroupId, Notice, Policy, Restart, Seat, Why,
    child::{Child, Phase},
};
use crate::{brake::Brake, stop::Stop};

/// How long a child has to be ready until its seat is believed to be sound again.
const SETTLED: Duration = Duration::from_secs(10);
/// How often in a row a child may end sooner than that before the next has to wait: who was killed is replaced at once, and only what comes
/// again and again is a crash loop.
const FREE: u32 = 3;

/// What is kept of all groups.
#[derive(Debug)]
pub struct Core {
    groups: Vec<Group>,
    children: BTreeMap<ChildId, Child>,
    next: u64,
    /// How often everybody was asked to stop.
    asked: u32,
    effects: Vec<Effect>,
}

#[derive(Debug)]
struct Group {
    policy: Policy,
    seats: Vec<Place>,
    /// Whether all that it is to have were ready at some time.
    was_up: bool,
}

#[derive(Debug, Default)]
struct Place {
    child: Option<ChildId>,
    brake: Brake,
    /// Children in a row that were not ready for long.
    early: u32,
    /// Whether it stays empty.
    retired: bool,
}

/// How many children a group has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// How many there are to be.
    pub wanted: usize,
    /// Those that are starting.
    pub starting: usize,
    /// Those that do what they are there for.
    pub ready: usize,
    /// Those that are about to end.
    pub stopping: usize,
    /// Seats whose children die as soon as they are started.
    pub braking: usize,
}

impl Core {
    /// Nothing is started yet.
    pub fn new(policies: impl IntoIterator<Item = Policy>) -> Self {
        let group = |policy| Group { policy, seats: Vec::new(), was_up: false };
        let groups = policies.into_iter().map(group).collect();
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

    /// When there is something to be done if nothing happens before.
    pub fn wake_at(&self, now: Duration) -> Option<Duration> {
        let of_children = self.children.values().flat_map(|child| {
            let policy = &self.groups[child.seat.group.0].policy;
            let stop = match &child.phase {
                Phase::Stopping { stop, .. } => stop.deadline(),
                Phase::Ready { since } => Some(*since + SETTLED).filter(|at| *at > now && self.is_shaken(child.seat)),
                Phase::Starting => None,
            };
            let age = child.bounds.age.map(|age| child.born + age).filter(|at| *at > now);
            [stop, child.hang_at(policy).map(|(at, _)| at), age]
        });
        let brakes = self.groups.iter().flat_map(|group| &group.seats).map(|seat| seat.brake.holds_until(now));
        of_children.chain(brakes).flatten().min()
    }

    /// Whether everybody was asked to stop, and nobody is left.
    pub fn is_over(&self) -> bool {
        self.asked > 0 && self.children.is_empty()
    }

    /// How often everybody was asked to stop.
    pub fn asked(&self) -> u32 {
        self.asked
    }

    /// How many children a group has.
    pub fn census(&self, group: GroupId) -> Census {
        let mut census = Census { wanted: self.wanted(group), ..Census::default() };
        for child in self.children.values().filter(|child| child.seat.group == group) {
            match child.phase {
                Phase::Starting => census.starting += 1,
                Phase::Ready { .. } => census.ready += 1,
                Phase::Stopping { .. } => census.stopping += 1,
            }
        }
        census.braking = self.groups[group.0].seats.iter().filter(|seat| seat.brake.is_on()).count();
        census
    }

    /// The seat of a child that is not gone.
    pub fn seat_of(&self, child: ChildId) -> Option<Seat> {
        self.children.get(&child).map(|child| child.seat)
    }

    fn wanted(&self, group: GroupId) -> usize {
        let Policy { replicas, on, .. } = self.groups[group.0].policy;
        if on { replicas } else { 0 }
    }

    fn place(&mut self, seat: Seat) -> &mut Place {
        &mut self.groups[seat.group.0].seats[seat.number]
    }

    fn is_shaken(&self, seat: Seat) -> bool {
        let place = &self.groups[seat.group.0].seats[seat.number];
        place.early > 0 || place.brake.is_on()
    }

    // -- what has happened

    fn heed(&mut self, event: Event, now: Duration) {
        match event {
            Event::Time => {}
            Event::Ready(id) => self.ready(id, now),
            Event::Gone(id, end) => self.gone(id, end, now),
            Event::Late => self.children.values_mut().for_each(|child| child.marked = now),
            Event::Marked(id) => self.with(id, |child| child.marked = now),
            Event::Suspended(id) => self.with(id, |child| child.suspended = child.suspended.or(Some(now))),
            Event::Continued(id) => self.with(id, |child| {
                // It has had no time to get on.
                (child.suspended, child.marked) = (None, now);
            }),
            Event::Hung(id, hang) => {
                if self.children.get(&id).is_some_and(|child| !child.is_stopping()) {
                    self.end(id, Why::Hung(hang), now);
                }
            }
            Event::Measured { child: id, tasks, rss } => self.with(id, |child| child.measured(tasks, rss)),
            Event::Scale(group, replicas) => self.groups[group.0].policy.replicas = replicas,
            Event::Turn(group, on) => {
                let group = &mut self.groups[group.0];
                // Those that wait for it wait for all of it.
                group.was_up &= !on || group.policy.on;
                group.policy.on = on;
                // Who turns it on means all of it, whatever was before.
                let empty = group.seats.iter_mut().filter(|seat| on && seat.child.is_none());
                empty.for_each(|seat| *seat = Place::default());
            }
            Event::Renew(group) => {
                let of_group = self.children.values_mut().filter(|child| child.seat.group == group);
                of_group.for_each(|child| child.outdated = true);
            }
            Event::Stop => self.stop(now),
        }
    }

    fn with(&mut self, id: ChildId, change: impl FnOnce(&mut Child)) {
        if let Some(child) = self.children.get_mut(&id) {
            change(child);
        }
    }

    fn ready(&mut self, id: ChildId, now: Duration) {
        let Some(child) = self.children.get_mut(&id).filter(|child| child.is_starting()) else { return };
        (child.phase, child.marked) = (Phase::Ready { since: now }, now);
        let seat = child.seat;
        let place = self.place(seat);
        // Where they die after they are ready, that one is ready again says nothing.
        if place.early <= FREE && place.brake.ready() {
            self.effects.push(Effect::Say(Notice::Recovered(seat)));
        }
    }

    fn gone(&mut self, id: ChildId, end: End, now: Duration) {
        let Some(child) = self.children.remove(&id) else { return };
        let seat = child.seat;
        self.place(seat).child = None;
        let (why, ready) = match &child.phase {
            Phase::Stopping { why, .. } => (Some(*why), child.ready_since()),
            _ => (None, child.ready_since()),
        };
        let end = match why {
            // It did as it was told, however it did.
            Some(Why::Asked | Why::Tasks | Why::Age | Why::Rss | Why::Outdated) => return,
            Some(Why::Hung(_)) => End::Badly,
            None => end,
        };
        let comes_again = match self.groups[seat.group.0].policy.restart {
            Restart::Always => true,
            Restart::OnFailure => end == End::Badly,
            Restart::Never => false,
        };
        if !comes_again {
            self.place(seat).retired = true;
            self.effects.push(Effect::Say(Notice::Retired(id)));
            return;
        }
        if why.is_none() {
            self.effects.push(Effect::Say(Notice::Replaced(id)));
        }
        let place = self.place(seat);
        let brakes = match ready {
            None => true,
            Some(since) if now.saturating_sub(since) < SETTLED => {
                place.early += 1;
                place.early > FREE
            }
            Some(_) => {
                place.early = 0;
                place.brake.ready();
                false
            }
        };
        if brakes && let Some(step) = place.brake.died(now) {
            let notice = Notice::Braking { seat, pause: step.pause, number: step.number };
            self.effects.push(Effect::Say(notice));
        }
    }

    fn stop(&mut self, now: Duration) {
        self.asked += 1;
        let ids: Vec<ChildId> = self.children.keys().copied().collect();
        for id in ids {
            match &mut self.children.get_mut(&id).expect("nobody has left meanwhile").phase {
                // One that stops already, for a reason of its own, need not stop faster for the first word.
                Phase::Stopping { .. } if self.asked == 1 => {}
                Phase::Stopping { stop, .. } => {
                    let (before, stage) = (stop.stage(), stop.request(now));
                    if stage != before {
                        self.effects.push(Effect::Tell(id, stage));
                    }
                }
                _ => self.end(id, Why::Asked, now),
            }
        }
    }

    // -- what follows

    /// Ends a child: in stages, or at once if it is hung and would not heed them.
    fn end(&mut self, id: ChildId, why: Why, now: Duration) {
        let child = self.children.get_mut(&id).expect("asked for one that is there");
        let mut stop = Stop::new(self.groups[child.seat.group.0].policy.stop);
        let stage = if matches!(why, Why::Hung(_)) { stop.kill(now) } else { stop.request(now) };
        child.phase = Phase::Stopping { stop, why, was_ready: child.ready_since() };
        self.effects.extend([Effect::Say(Notice::Ending(id, why)), Effect::Tell(id, stage)]);
    }

    fn go_on(&mut self, now: Duration) {
        self.move_stops_on(now);
        self.end_the_hung(now);
        self.believe_again(now);
        if self.asked == 0 {
            self.vacate(now);
            self.recycle(now);
            self.fill(now);
        }
    }

    fn move_stops_on(&mut self, now: Duration) {
        for (id, child) in &mut self.children {
            if let Phase::Stopping { stop, .. } = &mut child.phase
                && let Some(stage) = stop.tick(now)
            {
                self.effects.push(Effect::Tell(*id, stage));
            }
        }
    }

    fn end_the_hung(&mut self, now: Duration) {
        let hang = |child: &Child| child.hang(&self.groups[child.seat.group.0].policy, now);
        let hung: Vec<_> = self.children.iter().filter_map(|(id, child)| Some((*id, hang(child)?))).collect();
        for (id, hang) in hung {
            self.end(id, Why::Hung(hang), now);
        }
    }

    fn believe_again(&mut self, now: Duration) {
        let is_settled = |child: &&Child| matches!(child.phase, Phase::Ready { since } if since + SETTLED <= now);
        let settled: Vec<Seat> = self.children.values().filter(is_settled).map(|child| child.seat).collect();
        for seat in settled {
            let place = self.place(seat);
            place.early = 0;
            if place.brake.ready() {
                self.effects.push(Effect::Say(Notice::Recovered(seat)));
            }
        }
    }

    /// Ends those in seats that there are not to be any more.
    fn vacate(&mut self, now: Duration) {
        let is_spare = |child: &Child| !child.is_stopping() && child.seat.number >= self.wanted(child.seat.group);
        let spare: Vec<ChildId> =
            self.children.iter().filter(|(_, child)| is_spare(child)).map(|(id, _)| *id).collect();
        for id in spare {
            self.end(id, Why::Asked, now);
        }
    }

    /// Lets one of a group at a time make room for another, and only where all others are there that can be.
    fn recycle(&mut self, now: Duration) {
        for group in (0..self.groups.len()).map(GroupId) {
            let of_group = self.children.iter().filter(|(_, child)| child.seat.group == group);
            let due = of_group.filter_map(|(id, child)| Some((*id, child.recycle(now)?))).next();
            if let Some((id, why)) = due
                && self.is_complete(group)
            {
                self.end(id, why, now);
            }
        }
    }

    /// Whether there is a ready child in every seat that has not been given up for now: one in which children die as soon as they are started, or one
    /// that stays empty, would keep all others from being recycled.
    fn is_complete(&self, group: GroupId) -> bool {
        let is_ready =
            |id: &ChildId| matches!(self.children.get(id).map(|child| &child.phase), Some(Phase::Ready { .. }));
        let (seats, wanted) = (&self.groups[group.0].seats, self.wanted(group));
        let mut sound = seats.iter().take(wanted).filter(|seat| !seat.retired && !seat.brake.is_on());
        seats.len() >= wanted && sound.all(|seat| seat.child.as_ref().is_some_and(is_ready))
    }

    /// Starts who is missing.
    fn fill(&mut self, now: Duration) {
        for group in (0..self.groups.len()).map(GroupId) {
            let Census { wanted, ready, .. } = self.census(group);
            let seats = &mut self.groups[group.0].seats;
            seats.resize_with(seats.len().max(wanted), Place::default);
            self.groups[group.0].was_up |= ready >= wanted;
        }
        for group in (0..self.groups.len()).map(GroupId) {
            // Of each group its own: one whose children take long to start does not hold up the others.
            let mut starting = self.census(group).starting;
            let parallel = self.groups[group.0].policy.parallel;
            if !self.groups[group.0].policy.after.iter().all(|before| self.groups[before.0].was_up) {
                continue;
            }
            for number in 0..self.wanted(group) {
                let seat = Seat { group, number };
                let place = self.place(seat);
                let is_free = place.child.is_none() && !place.retired && place.brake.holds_until(now).is_none();
                if is_free && starting < parallel {
                    starting += 1;
                    self.start(seat, now);
                }
            }
        }
    }

    fn start(&mut self, seat: Seat, now: Duration) {
        let id = ChildId(self.next);
        self.next += 1;
        let bounds = self.groups[seat.group.0].policy.recycle.for_child(id.0);
        self.children.insert(id, Child::new(seat, bounds, now));
        self.place(seat).child = Some(id);
        self.effects.push(Effect::Start(id, seat));
    }
}
