//! What holds whatever happens to a core.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use proptest::prelude::*;

use super::{tests::*, *};
use crate::stop::{Stage, StopPolicy};

/// What the world around a core does next. Numbers choose among what is possible then.
#[derive(Clone, Debug)]
enum Turn {
    /// Time passes, as far as the core waits or a part of it.
    Wait(u8),
    Ready(u8),
    Dies(u8, bool),
    Marks,
    Suspends(u8),
    Continues(u8),
    Hangs(u8),
    Breaks(u8),
    Adopts(u8),
    Patience(u8, bool),
    Measures(u8, u8),
    Scales(u8, u8),
    Turns(u8, bool),
    Renews(u8),
    Stops,
}

fn turns() -> impl Strategy<Value = Vec<Turn>> {
    let number = any::<u8>;
    let turn = prop_oneof![
        8 => number().prop_map(Turn::Wait),
        8 => number().prop_map(Turn::Ready),
        6 => (number(), any::<bool>()).prop_map(|(a, b)| Turn::Dies(a, b)),
        6 => Just(Turn::Marks),
        2 => number().prop_map(Turn::Suspends),
        2 => number().prop_map(Turn::Continues),
        1 => number().prop_map(Turn::Hangs),
        1 => number().prop_map(Turn::Breaks),
        1 => number().prop_map(Turn::Adopts),
        1 => (number(), any::<bool>()).prop_map(|(a, b)| Turn::Patience(a, b)),
        3 => (number(), number()).prop_map(|(a, b)| Turn::Measures(a, b)),
        2 => (number(), 0..5u8).prop_map(|(a, b)| Turn::Scales(a, b)),
        2 => (number(), any::<bool>()).prop_map(|(a, b)| Turn::Turns(a, b)),
        1 => number().prop_map(Turn::Renews),
        1 => Just(Turn::Stops),
    ];
    proptest::collection::vec(turn, 0..150)
}

fn policies() -> impl Strategy<Value = Vec<Policy>> {
    let restart =
        prop_oneof![Just(Restart::Always), Just(Restart::OnFailure), Just(Restart::Never), Just(Restart::OnDemand)];
    let brake = prop_oneof![Just(Braking::Seat), Just(Braking::Group)];
    let one = (0..5usize, restart, brake, any::<bool>(), 0..20u64, 1..6usize, any::<(bool, bool)>());
    let one = one.prop_map(|(replicas, restart, brake, on, tasks, parallel, (starts, marks))| {
        let recycle = Recycle { tasks: (tasks > 0).then_some(tasks), jitter: 0.5, ..Recycle::default() };
        let policy = policy(replicas);
        let (start_within, patience) = (policy.start_within.filter(|_| starts), policy.patience.filter(|_| marks));
        Policy { restart, brake, on, recycle, parallel, start_within, patience, ..policy }
    });
    proptest::collection::vec(one, 1..4).prop_map(|mut policies| {
        // Each may wait for the one before it: never in a circle.
        for (before, policy) in policies.iter_mut().skip(1).enumerate() {
            policy.after = vec![GroupId(before)];
        }
        policies
    })
}

/// The world as far as a core can tell.
struct Around {
    core: Core,
    now: Duration,
    /// Those that were started and are not gone, and how far each was told to stop.
    children: BTreeMap<ChildId, (Seat, Stage)>,
    wanted: Vec<(usize, bool)>,
    /// Those that were started, and have not been ready yet.
    starting: BTreeSet<ChildId>,
    policies: Vec<Policy>,
    asked: bool,
}

impl Around {
    fn tell(&mut self, event: Event) {
        for effect in self.core.on(event, self.now) {
            match effect {
                Effect::Start(child, seat) => {
                    assert!(!self.asked, "nobody is started once all are to stop");
                    assert!(self.children.values().all(|(other, _)| *other != seat), "two in one seat");
                    let (replicas, on) = self.wanted[seat.group.0];
                    assert!(on && seat.number < replicas, "more than there are to be");
                    assert!(self.children.insert(child, (seat, Stage::Running)).is_none(), "a number came twice");
                    let of_group = |id: &&ChildId| self.children[id].0.group == seat.group;
                    let is_starting = |id: &&ChildId| of_group(id) && self.children[id].1 == Stage::Running;
                    let starting = self.starting.iter().filter(is_starting).count();
                    assert!(starting < self.policies[seat.group.0].parallel, "too many at a time");
                    self.starting.insert(child);
                }
                Effect::Tell(child, stage) => {
                    let (_, before) = self.children.get_mut(&child).expect("told one that is gone");
                    assert!(*before < stage, "stages came out of order: {before:?}, {stage:?}");
                    *before = stage;
                }
                Effect::Say(_) => {}
            }
        }
        assert!(self.core.wake_at(self.now).is_none_or(|at| at > self.now), "it would be woken for ever");
        self.count();
    }

    /// What it has counted is what there is.
    fn count(&self) {
        for group in (0..self.wanted.len()).map(GroupId) {
            let of_group = || self.children.iter().filter(|(_, (seat, _))| seat.group == group);
            let stopping = of_group().filter(|(_, (_, stage))| *stage > Stage::Running).count();
            let is_starting = |id: &ChildId, stage: Stage| stage == Stage::Running && self.starting.contains(id);
            let starting = of_group().filter(|(id, (_, stage))| is_starting(id, *stage)).count();
            let census = self.core.census(group);
            assert_eq!((census.starting, census.stopping), (starting, stopping));
            assert_eq!(census.ready, of_group().count() - starting - stopping);
        }
    }

    fn ready(&mut self, child: ChildId) {
        self.starting.remove(&child);
        self.tell(Event::Ready(child));
    }

    fn some(&self, choice: u8) -> Option<ChildId> {
        let count = self.children.len();
        self.children.keys().nth(usize::from(choice) % count.max(1)).copied()
    }

    fn group(&self, choice: u8) -> GroupId {
        GroupId(usize::from(choice) % self.wanted.len())
    }

    fn gone(&mut self, child: ChildId, end: End) {
        self.starting.remove(&child);
        if let Some((seat, _)) = self.children.remove(&child)
            && self.policies[seat.group.0].restart == Restart::OnDemand
        {
            let (replicas, _) = &mut self.wanted[seat.group.0];
            *replicas = replicas.saturating_sub(1);
        }
        self.tell(Event::Gone(child, end));
    }

    fn turn(&mut self, turn: Turn) {
        let child_of = |around: &Self, choice| around.some(choice);
        match turn {
            Turn::Wait(part) => {
                let until = self.core.wake_at(self.now).unwrap_or(self.now + at(500));
                self.now += (until - self.now).mul_f64(f64::from(part) / 255.0) + at(1);
                self.tell(Event::Time);
            }
            Turn::Ready(choice) => child_of(self, choice).into_iter().for_each(|child| self.ready(child)),
            Turn::Dies(choice, well) => {
                let end = if well { End::Well } else { End::Badly };
                child_of(self, choice).into_iter().for_each(|child| self.gone(child, end));
            }
            Turn::Marks => {
                let all: Vec<ChildId> = self.children.keys().copied().collect();
                all.into_iter().for_each(|child| self.tell(Event::Marked(child)));
            }
            Turn::Suspends(choice) => {
                child_of(self, choice).into_iter().for_each(|child| self.tell(Event::Suspended(child)));
            }
            Turn::Continues(choice) => {
                child_of(self, choice).into_iter().for_each(|child| self.tell(Event::Continued(child)));
            }
            Turn::Hangs(choice) => {
                child_of(self, choice).into_iter().for_each(|child| self.tell(Event::Hung(child, Hang::Overdue)));
            }
            Turn::Breaks(choice) => {
                child_of(self, choice).into_iter().for_each(|child| self.tell(Event::Broken(child)));
            }
            Turn::Adopts(choice) => {
                let group = self.group(choice);
                let child = self.core.adopt(group, self.now);
                let seat = self.core.seat_of(child).expect("it is there");
                assert!(self.children.values().all(|(other, _)| *other != seat), "two in one seat");
                self.children.insert(child, (seat, Stage::Running));
                self.wanted[group.0].0 += usize::from(self.policies[group.0].restart == Restart::OnDemand);
                self.tell(Event::Time);
            }
            Turn::Patience(choice, drains) => {
                let drain = (!drains).then_some(at(100));
                self.tell(Event::Patience(self.group(choice), StopPolicy { drain, grace: at(10) }));
            }
            Turn::Measures(choice, tasks) => child_of(self, choice)
                .into_iter()
                .for_each(|child| self.tell(Event::Measured { child, tasks: tasks.into(), rss: None })),
            Turn::Scales(choice, replicas) => {
                let group = self.group(choice);
                self.wanted[group.0].0 = replicas.into();
                self.tell(Event::Scale(group, replicas.into()));
            }
            Turn::Turns(choice, on) => {
                let group = self.group(choice);
                self.wanted[group.0].1 = on;
                self.tell(Event::Turn(group, on));
            }
            Turn::Renews(choice) => self.tell(Event::Renew(self.group(choice))),
            Turn::Stops => {
                self.asked = true;
                self.tell(Event::Stop);
            }
        }
    }
}

fn around(policies: Vec<Policy>) -> Around {
    let wanted = policies.iter().map(|policy| (policy.replicas, policy.on)).collect();
    let core = Core::new(policies.clone());
    let (children, starting) = (BTreeMap::new(), BTreeSet::new());
    Around { core, now: at(0), children, wanted, starting, policies, asked: false }
}

proptest! {
    /// Never two in a seat, never more than there are to be, nor too many at a time, stages in order; and once all are to stop, all do, whatever they ignore.
    #[test]
    fn a_core_keeps_its_promises(policies in policies(), turns in turns()) {
        let mut around = around(policies);
        around.tell(Event::Time);
        for turn in turns {
            around.turn(turn);
        }
        around.asked = true;
        around.tell(Event::Stop);
        // Those that heed nothing but the last word.
        for _ in 0..1000 {
            let killed = around.children.iter().find(|(_, (_, stage))| *stage == Stage::Killing).map(|(id, _)| *id);
            match (killed, around.core.wake_at(around.now)) {
                (Some(child), _) => around.gone(child, End::Badly),
                (None, Some(at)) => {
                    around.now = at;
                    around.tell(Event::Time);
                }
                // Those that may take as long as they like.
                (None, None) if !around.children.is_empty() => around.tell(Event::Stop),
                (None, None) => break,
            }
        }
        prop_assert!(around.core.is_over() && around.children.is_empty());
    }

    /// Left alone, with children that do well, each group comes to have what it is to have.
    #[test]
    fn a_core_comes_to_rest(policies in policies(), turns in turns()) {
        let lasting = |restart| if restart == Restart::OnDemand { restart } else { Restart::Always };
        let lasting = |one: Policy| Policy { restart: lasting(one.restart), ..one };
        let mut around = around(policies.into_iter().map(lasting).collect());
        around.tell(Event::Time);
        for turn in turns.into_iter().filter(|turn| !matches!(turn, Turn::Stops)) {
            around.turn(turn);
        }
        let is_at_rest = |around: &Around| (0..around.wanted.len()).map(GroupId).all(|group| {
            let census = around.core.census(group);
            let spare = census.ready.checked_sub(census.wanted);
            let may_be_more = around.policies[group.0].restart == Restart::OnDemand;
            spare.is_some_and(|spare| spare == 0 || may_be_more) && census.starting + census.stopping == 0
        });
        for _ in 0..2000 {
            if is_at_rest(&around) {
                break;
            }
            let told: Vec<(ChildId, Stage)> = around.children.iter().map(|(id, (_, stage))| (*id, *stage)).collect();
            for (child, stage) in told {
                match stage {
                    Stage::Running => {
                        around.tell(Event::Continued(child));
                        around.ready(child);
                        around.tell(Event::Measured { child, tasks: 0, rss: None });
                    }
                    _ => around.gone(child, End::Well),
                }
            }
            if let Some(at) = around.core.wake_at(around.now) {
                around.now = at.min(around.now + super::tests::at(500));
            }
            around.tell(Event::Time);
        }
        prop_assert!(is_at_rest(&around));
    }
}
