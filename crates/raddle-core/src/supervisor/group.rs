//! One group: its seats, how many children it has, and whether others are held back.

use std::{collections::BTreeSet, time::Duration};

use super::{Braking, ChildId, Policy, Restart, child::Phase};
use crate::{
    brake::Brake,
    stop::{Stage, Stop, StopPolicy},
};

/// How often in a row a child may end soon after it was ready before the next has to wait: who was killed is replaced at once, and only what comes
/// again and again is a crash loop.
const FREE: u32 = 3;

#[derive(Debug)]
pub(super) struct Group {
    pub(super) policy: Policy,
    seats: Vec<Place>,
    /// Seats that nobody is in. Those that stay empty are not among them.
    vacant: BTreeSet<usize>,
    /// The seat after the one that was filled last. It is looked from there on: one whose children never start does not keep the others empty.
    next: usize,
    /// How many children there are in each phase.
    starting: usize,
    ready: usize,
    stopping: usize,
    /// Those that are to make room for others.
    pub(super) due: BTreeSet<ChildId>,
    /// What is wrong, where that is the same for all.
    trouble: Trouble,
    /// Whether all that it is to have were ready at some time.
    pub(super) was_up: bool,
    /// Whether there may be children that there are not to be any more.
    pub(super) has_shrunk: bool,
    /// How far the group was asked to stop, also while nobody is in it.
    pub(super) stop: Stop,
}

#[derive(Debug, Default)]
struct Place {
    trouble: Trouble,
    /// Whether it stays empty.
    retired: bool,
}

/// Whether children die as soon as they are started.
#[derive(Debug, Default)]
pub(super) struct Trouble {
    pub(super) brake: Brake,
    /// Children in a row that were not ready for long.
    early: u32,
    /// When the last of these has ended.
    counted: Duration,
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
    /// Seats whose children die as soon as they are started. One, where it is the whole group that is held back.
    pub braking: usize,
}

impl Group {
    pub(super) fn new(policy: Policy) -> Self {
        Self {
            seats: Vec::new(),
            vacant: BTreeSet::new(),
            next: 0,
            starting: 0,
            ready: 0,
            stopping: 0,
            due: BTreeSet::new(),
            trouble: Trouble::default(),
            was_up: false,
            has_shrunk: false,
            stop: Stop::new(policy.stop),
            policy,
        }
    }

    pub(super) fn census(&self) -> Census {
        let braking = match self.policy.brake {
            Braking::Seat => self.seats.iter().filter(|seat| seat.trouble.brake.is_on()).count(),
            Braking::Group => usize::from(self.trouble.brake.is_on()),
        };
        let Self { starting, ready, stopping, .. } = *self;
        Census { wanted: self.wanted(), starting, ready, stopping, braking }
    }

    pub(super) fn wanted(&self) -> usize {
        if self.policy.on { self.policy.replicas } else { 0 }
    }

    pub(super) fn is_up(&self) -> bool {
        self.ready >= self.wanted()
    }

    /// Whether a seat has not been given up for now: one in which children die as soon as they are started, or one that stays empty, would keep all
    /// others from being recycled.
    pub(super) fn is_sound(&self, seat: usize) -> bool {
        seat < self.wanted() && self.seats.get(seat).is_none_or(|place| !place.retired && !place.trouble.brake.is_on())
    }

    /// How many seats are sound.
    pub(super) fn sound(&self) -> usize {
        (0..self.wanted()).filter(|seat| self.is_sound(*seat)).count()
    }

    pub(super) fn is_on_demand(&self) -> bool {
        self.policy.restart == Restart::OnDemand
    }

    /// Whether there is not to be a child in this seat.
    pub(super) fn is_spare(&self, seat: usize) -> bool {
        if self.is_on_demand() { !self.policy.on } else { seat >= self.wanted() }
    }

    /// One child more in this phase.
    pub(super) fn enters(&mut self, phase: &Phase) {
        *self.count(phase) += 1;
    }

    /// One less.
    pub(super) fn leaves(&mut self, phase: &Phase) {
        *self.count(phase) -= 1;
    }

    fn count(&mut self, phase: &Phase) -> &mut usize {
        match phase {
            Phase::Starting { .. } => &mut self.starting,
            Phase::Ready { .. } => &mut self.ready,
            Phase::Stopping { .. } => &mut self.stopping,
        }
    }

    /// What is wrong in a seat.
    pub(super) fn trouble(&mut self, seat: usize) -> &mut Trouble {
        match self.policy.brake {
            Braking::Seat => &mut self.seats[seat].trouble,
            Braking::Group => &mut self.trouble,
        }
    }

    pub(super) fn scale(&mut self, replicas: usize) {
        self.has_shrunk |= replicas < self.policy.replicas && !self.is_on_demand();
        self.policy.replicas = replicas;
    }

    pub(super) fn turn(&mut self, on: bool) {
        // Those that wait for it wait for all of it.
        self.was_up &= !on || self.policy.on;
        self.has_shrunk |= !on;
        self.policy.on = on;
        if !on {
            return;
        }
        // Who turns it on means all of it, whatever was before.
        self.trouble = Trouble::default();
        for (number, seat) in self.seats.iter_mut().enumerate() {
            if seat.retired || self.vacant.contains(&number) {
                *seat = Place::default();
                self.vacant.insert(number);
            }
        }
    }

    pub(super) fn stop_like(&mut self, policy: StopPolicy) {
        self.policy.stop = policy;
        if self.stop.stage() == Stage::Running {
            self.stop = Stop::new(policy);
        }
    }

    /// Makes sure that there are as many seats as there are to be children.
    pub(super) fn furnish(&mut self) {
        while self.seats.len() < self.wanted() {
            self.add_seat();
        }
    }

    fn add_seat(&mut self) {
        self.vacant.insert(self.seats.len());
        self.seats.push(Place::default());
    }

    /// A seat whose child is missing, if another may be started now. How many are starting in other groups is no matter: one whose children take long
    /// does not hold up the others.
    pub(super) fn next_seat(&self, now: Duration) -> Option<usize> {
        let shared = &self.trouble.brake;
        if self.starting >= shared.max_parallel(self.policy.parallel) || self.held_until(now).is_some() {
            return None;
        }
        self.missing().find(|seat| self.seats[*seat].trouble.brake.holds_until(now).is_none())
    }

    /// Until when all are held back, where that is the same for all.
    pub(super) fn held_until(&self, now: Duration) -> Option<Duration> {
        self.trouble.brake.holds_until(now)
    }

    /// When somebody is no longer held back.
    pub(super) fn released_at(&self, now: Duration) -> Option<Duration> {
        match self.policy.brake {
            Braking::Seat => self.missing().filter_map(|seat| self.seats[seat].trouble.brake.holds_until(now)).min(),
            Braking::Group => self.held_until(now).filter(|_| self.missing().next().is_some()),
        }
    }

    /// The seats whose children are missing.
    fn missing(&self) -> impl Iterator<Item = usize> {
        let live = self.starting + self.ready + self.stopping;
        // Where children come and go by themselves, any seat will do.
        let is_full = self.is_on_demand() && live >= self.wanted();
        let end = if is_full { 0 } else { self.wanted() };
        let next = self.next.min(end);
        self.vacant.range(next..end).chain(self.vacant.range(..next)).copied()
    }

    pub(super) fn sit(&mut self, seat: usize) {
        self.vacant.remove(&seat);
        self.next = seat + 1;
    }

    /// A seat for a child that somebody else has started.
    pub(super) fn seat_for_another(&mut self) -> usize {
        if self.vacant.is_empty() {
            self.add_seat();
        }
        self.policy.replicas += usize::from(self.is_on_demand());
        self.has_shrunk |= !self.is_on_demand() || !self.policy.on;
        self.vacant.pop_first().expect("one was added if there was none")
    }

    /// Nobody is in a seat any more.
    pub(super) fn vacate(&mut self, seat: usize) {
        self.vacant.insert(seat);
        if self.is_on_demand() {
            self.policy.replicas = self.policy.replicas.saturating_sub(1);
        }
    }

    /// Nobody will be in a seat any more.
    pub(super) fn retire(&mut self, seat: usize) {
        self.vacant.remove(&seat);
        self.seats[seat].retired = true;
    }
}

impl Trouble {
    /// A child has ended that was not ready for long. Returns whether there were too many of those: one after the other, for those that were there together
    /// may have been ended together.
    pub(super) fn ended_early(&mut self, born: Duration, now: Duration) -> bool {
        if born >= self.counted {
            (self.early, self.counted) = (self.early + 1, now);
        }
        self.is_loop()
    }

    /// Whether they end again and again.
    pub(super) fn is_loop(&self) -> bool {
        self.early > FREE
    }

    /// One has stayed. Returns whether others were held back.
    pub(super) fn is_over(&mut self) -> bool {
        self.early = 0;
        self.brake.ready()
    }

    /// Whether it has to be found out if it is over.
    pub(super) fn is_there(&self) -> bool {
        self.early > 0 || self.brake.is_on()
    }
}
