//! One group: its seats, and whether others are held back.

use std::time::Duration;

use super::{Braking, Policy, Restart};
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
    /// The seat after the one that was filled last. It is looked from there on: one whose children never start does not keep the others empty.
    next: usize,
    /// What is wrong, where that is the same for all.
    trouble: Trouble,
    /// Whether all that it is to have were ready at some time.
    pub(super) was_up: bool,
    /// How far the group was asked to stop, also while nobody is in it.
    pub(super) stop: Stop,
}

#[derive(Debug, Default)]
struct Place {
    trouble: Trouble,
    /// Whether a child is in it.
    taken: bool,
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
            next: 0,
            trouble: Trouble::default(),
            was_up: false,
            stop: Stop::new(policy.stop),
            policy,
        }
    }

    /// Without its children.
    pub(super) fn empty_census(&self) -> Census {
        let braking = match self.policy.brake {
            Braking::Seat => self.seats.iter().filter(|seat| seat.trouble.brake.is_on()).count(),
            Braking::Group => usize::from(self.trouble.brake.is_on()),
        };
        Census { wanted: self.wanted(), braking, ..Census::default() }
    }

    pub(super) fn wanted(&self) -> usize {
        if self.policy.on { self.policy.replicas } else { 0 }
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

    /// What is wrong in a seat.
    pub(super) fn trouble(&mut self, seat: usize) -> &mut Trouble {
        match self.policy.brake {
            Braking::Seat => &mut self.seats[seat].trouble,
            Braking::Group => &mut self.trouble,
        }
    }

    pub(super) fn scale(&mut self, replicas: usize) {
        self.policy.replicas = replicas;
    }

    pub(super) fn turn(&mut self, on: bool) {
        // Those that wait for it wait for all of it.
        self.was_up &= !on || self.policy.on;
        self.policy.on = on;
        if !on {
            return;
        }
        // Who turns it on means all of it, whatever was before.
        self.trouble = Trouble::default();
        self.seats.iter_mut().filter(|seat| !seat.taken).for_each(|seat| *seat = Place::default());
    }

    /// Ends all pauses, until the next child dies.
    pub(super) fn release(&mut self) {
        self.trouble.brake.release();
        self.seats.iter_mut().for_each(|seat| seat.trouble.brake.release());
    }

    pub(super) fn stop_like(&mut self, policy: StopPolicy) {
        self.policy.stop = policy;
        if self.stop.stage() == Stage::Running {
            self.stop = Stop::new(policy);
        }
    }

    /// Makes sure that there are as many seats as there are to be children.
    pub(super) fn furnish(&mut self) {
        let seats = self.seats.len().max(self.wanted());
        self.seats.resize_with(seats, Place::default);
    }

    /// A seat whose child is missing, if another may be started now. How many are starting in other groups is no matter: one whose children take long
    /// does not hold up the others.
    pub(super) fn next_seat(&self, census: &Census, now: Duration) -> Option<usize> {
        let shared = &self.trouble.brake;
        if census.starting >= shared.max_parallel(self.policy.parallel) || self.held_until(now).is_some() {
            return None;
        }
        self.missing(census).find(|seat| self.seats[*seat].trouble.brake.holds_until(now).is_none())
    }

    /// Until when all are held back, where that is the same for all.
    pub(super) fn held_until(&self, now: Duration) -> Option<Duration> {
        self.trouble.brake.holds_until(now)
    }

    /// When somebody is no longer held back.
    pub(super) fn released_at(&self, census: &Census, now: Duration) -> Option<Duration> {
        let mut missing = self.missing(census);
        match self.policy.brake {
            Braking::Seat => missing.filter_map(|seat| self.seats[seat].trouble.brake.holds_until(now)).min(),
            Braking::Group => self.held_until(now).filter(|_| missing.next().is_some()),
        }
    }

    /// The seats whose children are missing.
    fn missing(&self, census: &Census) -> impl Iterator<Item = usize> {
        let live = census.starting + census.ready + census.stopping;
        // Where children come and go by themselves, any seat will do.
        let is_full = self.is_on_demand() && live >= self.wanted();
        let end = if is_full { 0 } else { self.wanted().min(self.seats.len()) };
        let next = self.next.min(end);
        (next..end).chain(0..next).filter(|seat| self.seats[*seat].is_vacant())
    }

    pub(super) fn sit(&mut self, seat: usize) {
        self.seats[seat].taken = true;
        self.next = seat + 1;
    }

    /// A seat for a child that somebody else has started.
    pub(super) fn seat_for_another(&mut self) -> usize {
        self.policy.replicas += usize::from(self.is_on_demand());
        let seat = self.seats.iter().position(Place::is_vacant).unwrap_or(self.seats.len());
        self.seats.resize_with(self.seats.len().max(seat + 1), Place::default);
        self.seats[seat].taken = true;
        seat
    }

    /// Nobody is in a seat any more.
    pub(super) fn vacate(&mut self, seat: usize) {
        self.seats[seat].taken = false;
        if self.is_on_demand() {
            self.policy.replicas = self.policy.replicas.saturating_sub(1);
        }
    }

    /// Nobody will be in a seat any more.
    pub(super) fn retire(&mut self, seat: usize) {
        self.seats[seat].retired = true;
    }
}

impl Place {
    fn is_vacant(&self) -> bool {
        !self.taken && !self.retired
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

    /// Whether they ended again and again, and this one was born after the last of them.
    pub(super) fn is_loop_before(&self, born: Duration) -> bool {
        self.is_loop() && born >= self.counted
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
