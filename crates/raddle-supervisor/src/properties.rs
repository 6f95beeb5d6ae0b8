//! Invariants of a `Supervisor` under random events.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use proptest::prelude::*;
use raddle_model::stop::{StopPolicy, StopStage};

use super::{tests::*, *};

/// A random action of the environment. The numbers select among the possible targets.
#[derive(Clone, Debug)]
enum Action {
    /// Advances the clock by a fraction of the time until the supervisor's next deadline.
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

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let number = any::<u8>;
    let action = prop_oneof![
        8 => number().prop_map(Action::Wait),
        8 => number().prop_map(Action::Ready),
        6 => (number(), any::<bool>()).prop_map(|(a, b)| Action::Dies(a, b)),
        6 => Just(Action::Marks),
        2 => number().prop_map(Action::Suspends),
        2 => number().prop_map(Action::Continues),
        1 => number().prop_map(Action::Hangs),
        1 => number().prop_map(Action::Breaks),
        1 => number().prop_map(Action::Adopts),
        1 => (number(), any::<bool>()).prop_map(|(a, b)| Action::Patience(a, b)),
        3 => (number(), number()).prop_map(|(a, b)| Action::Measures(a, b)),
        2 => (number(), 0..5u8).prop_map(|(a, b)| Action::Scales(a, b)),
        2 => (number(), any::<bool>()).prop_map(|(a, b)| Action::Turns(a, b)),
        1 => number().prop_map(Action::Renews),
        1 => Just(Action::Stops),
    ];
    proptest::collection::vec(action, 0..150)
}

fn policies() -> impl Strategy<Value = Vec<GroupPolicy>> {
    let restart = prop_oneof![
        Just(RestartPolicy::Always),
        Just(RestartPolicy::OnFailure),
        Just(RestartPolicy::Never),
        Just(RestartPolicy::OnDemand)
    ];
    let backoff_scope = prop_oneof![Just(BackoffScope::Slot), Just(BackoffScope::Group)];
    let one = (
        0..5usize,
        restart,
        backoff_scope,
        any::<bool>(),
        0..20u64,
        1..6usize,
        any::<(bool, bool)>(),
    );
    let one = one.prop_map(
        |(replicas, restart, backoff_scope, on, tasks, parallel, (starts, marks))| {
            let recycle = RecyclePolicy {
                tasks: (tasks > 0).then_some(tasks),
                jitter: 0.5,
                ..RecyclePolicy::default()
            };
            let policy = policy(replicas);
            let (start_timeout, hang_timeout) = (
                policy.start_timeout.filter(|_| starts),
                policy.hang_timeout.filter(|_| marks),
            );
            GroupPolicy {
                restart,
                backoff_scope,
                on,
                recycle,
                parallel,
                start_timeout,
                hang_timeout,
                ..policy
            }
        },
    );
    proptest::collection::vec(one, 1..4).prop_map(|mut policies| {
        // Each group may depend on the one before it, so there are no cycles.
        for (before, policy) in policies.iter_mut().skip(1).enumerate() {
            policy.after = vec![GroupId(before)];
        }
        policies
    })
}

/// Model of the supervisor's environment.
struct Model {
    core: Supervisor,
    now: Duration,
    /// Started children that have not exited, with their stop stage.
    children: BTreeMap<ChildId, (ReplicaSlot, StopStage)>,
    wanted: Vec<(usize, bool)>,
    /// Started children that have not been ready yet.
    starting: BTreeSet<ChildId>,
    policies: Vec<GroupPolicy>,
    asked: bool,
}

impl Model {
    fn send(&mut self, event: SupervisorEvent) {
        for effect in self.core.on(event, self.now) {
            match effect {
                SupervisorEffect::Start(child, slot) => {
                    assert!(!self.asked, "no child starts after a stop request");
                    assert!(
                        self.children.values().all(|(other, _)| *other != slot),
                        "two children in one slot"
                    );
                    let (replicas, on) = self.wanted[slot.group.0];
                    assert!(on && slot.number < replicas, "more children than replicas");
                    assert!(
                        self.children
                            .insert(child, (slot, StopStage::Running))
                            .is_none(),
                        "a child id was reused"
                    );
                    let of_group = |id: &&ChildId| self.children[id].0.group == slot.group;
                    let is_starting =
                        |id: &&ChildId| of_group(id) && self.children[id].1 == StopStage::Running;
                    let starting = self.starting.iter().filter(is_starting).count();
                    assert!(
                        starting < self.policies[slot.group.0].parallel,
                        "too many starting children"
                    );
                    self.starting.insert(child);
                }
                SupervisorEffect::SetStopStage(child, stage) => {
                    let (_, before) = self
                        .children
                        .get_mut(&child)
                        .expect("only live children are stopped");
                    assert!(
                        *before < stage,
                        "stages came out of order: {before:?}, {stage:?}"
                    );
                    *before = stage;
                }
                SupervisorEffect::Notify(_) => {}
            }
        }
        assert!(
            self.core
                .wake_at(self.now)
                .is_none_or(|millis| millis > self.now),
            "the deadline is in the past: the loop would spin"
        );
        self.check_counts();
    }

    /// Asserts that the supervisor's counts match the model.
    fn check_counts(&self) {
        for group in (0..self.wanted.len()).map(GroupId) {
            let of_group = || {
                self.children
                    .iter()
                    .filter(|(_, (slot, _))| slot.group == group)
            };
            let stopping = of_group()
                .filter(|(_, (_, stage))| *stage > StopStage::Running)
                .count();
            let is_starting = |id: &ChildId, stage: StopStage| {
                stage == StopStage::Running && self.starting.contains(id)
            };
            let starting = of_group()
                .filter(|(id, (_, stage))| is_starting(id, *stage))
                .count();
            let counts = self.core.census(group);
            assert_eq!((counts.starting, counts.stopping), (starting, stopping));
            assert_eq!(counts.ready, of_group().count() - starting - stopping);
        }
    }

    fn ready(&mut self, child: ChildId) {
        self.starting.remove(&child);
        self.send(SupervisorEvent::Ready(child));
    }

    fn pick_child(&self, choice: u8) -> Option<ChildId> {
        let count = self.children.len();
        self.children
            .keys()
            .nth(usize::from(choice) % count.max(1))
            .copied()
    }

    fn group(&self, choice: u8) -> GroupId {
        GroupId(usize::from(choice) % self.wanted.len())
    }

    fn gone(&mut self, child: ChildId, end: ChildExit) {
        self.starting.remove(&child);
        if let Some((slot, _)) = self.children.remove(&child)
            && self.policies[slot.group.0].restart == RestartPolicy::OnDemand
        {
            let (replicas, _) = &mut self.wanted[slot.group.0];
            *replicas = replicas.saturating_sub(1);
        }
        self.send(SupervisorEvent::Exited(child, end));
    }

    fn perform(&mut self, action: Action) {
        let pick = |model: &Self, choice| model.pick_child(choice);
        match action {
            Action::Wait(part) => {
                let until = self
                    .core
                    .wake_at(self.now)
                    .unwrap_or(self.now + millis(500));
                self.now += (until - self.now).mul_f64(f64::from(part) / 255.0) + millis(1);
                self.send(SupervisorEvent::Time);
            }
            Action::Ready(choice) => pick(self, choice)
                .into_iter()
                .for_each(|child| self.ready(child)),
            Action::Dies(choice, well) => {
                let end = if well {
                    ChildExit::Success
                } else {
                    ChildExit::Failure
                };
                pick(self, choice)
                    .into_iter()
                    .for_each(|child| self.gone(child, end));
            }
            Action::Marks => {
                let all: Vec<ChildId> = self.children.keys().copied().collect();
                all.into_iter()
                    .for_each(|child| self.send(SupervisorEvent::Heartbeat(child)));
            }
            Action::Suspends(choice) => {
                pick(self, choice)
                    .into_iter()
                    .for_each(|child| self.send(SupervisorEvent::Suspended(child)));
            }
            Action::Continues(choice) => {
                pick(self, choice)
                    .into_iter()
                    .for_each(|child| self.send(SupervisorEvent::Continued(child)));
            }
            Action::Hangs(choice) => {
                pick(self, choice)
                    .into_iter()
                    .for_each(|child| self.send(SupervisorEvent::Hung(child, HangKind::Overdue)));
            }
            Action::Breaks(choice) => {
                pick(self, choice)
                    .into_iter()
                    .for_each(|child| self.send(SupervisorEvent::Broken(child)));
            }
            Action::Adopts(choice) => {
                let group = self.group(choice);
                let child = self.core.adopt(group, self.now);
                let slot = self.core.seat_of(child).expect("the child is live");
                assert!(
                    self.children.values().all(|(other, _)| *other != slot),
                    "two children in one slot"
                );
                self.children.insert(child, (slot, StopStage::Running));
                self.wanted[group.0].0 +=
                    usize::from(self.policies[group.0].restart == RestartPolicy::OnDemand);
                self.send(SupervisorEvent::Time);
            }
            Action::Patience(choice, drains) => {
                let drain = (!drains).then_some(millis(100));
                self.send(SupervisorEvent::SetStopPolicy(
                    self.group(choice),
                    StopPolicy {
                        drain,
                        grace: millis(10),
                    },
                ));
            }
            Action::Measures(choice, tasks) => pick(self, choice).into_iter().for_each(|child| {
                self.send(SupervisorEvent::Measured {
                    child,
                    tasks: tasks.into(),
                    rss: None,
                })
            }),
            Action::Scales(choice, replicas) => {
                let group = self.group(choice);
                self.wanted[group.0].0 = replicas.into();
                self.send(SupervisorEvent::Scale(group, replicas.into()));
            }
            Action::Turns(choice, on) => {
                let group = self.group(choice);
                self.wanted[group.0].1 = on;
                self.send(SupervisorEvent::Switch(group, on));
            }
            Action::Renews(choice) => self.send(SupervisorEvent::Renew(self.group(choice))),
            Action::Stops => {
                self.asked = true;
                self.send(SupervisorEvent::Stop);
            }
        }
    }
}

fn model(policies: Vec<GroupPolicy>) -> Model {
    let wanted = policies
        .iter()
        .map(|policy| (policy.replicas, policy.on))
        .collect();
    let core = Supervisor::new(policies.clone());
    let (children, starting) = (BTreeMap::new(), BTreeSet::new());
    Model {
        core,
        now: millis(0),
        children,
        wanted,
        starting,
        policies,
        asked: false,
    }
}

proptest! {
    /// A slot never has two children, a group never has too many children or too many starting at a
    /// time, and stop stages come in order. After a stop all children exit, even if they ignore
    /// everything but SIGKILL.
    #[test]
    fn invariants_hold(policies in policies(), actions in actions()) {
        let mut model = model(policies);
        model.send(SupervisorEvent::Time);
        for action in actions {
            model.perform(action);
        }
        model.asked = true;
        model.send(SupervisorEvent::Stop);
        // Children that exit only when they are killed.
        for _ in 0..1000 {
            let killed = model.children.iter().find(|(_, (_, stage))| *stage == StopStage::Killing).map(|(id, _)| *id);
            match (killed, model.core.wake_at(model.now)) {
                (Some(child), _) => model.gone(child, ChildExit::Failure),
                (None, Some(millis)) => {
                    model.now = millis;
                    model.send(SupervisorEvent::Time);
                }
                // Children with an unlimited drain.
                (None, None) if !model.children.is_empty() => model.send(SupervisorEvent::Stop),
                (None, None) => break,
            }
        }
        prop_assert!(model.core.is_over() && model.children.is_empty());
    }

    /// With healthy children, each group reaches its desired number.
    #[test]
    fn groups_reach_their_desired_size(policies in policies(), actions in actions()) {
        let lasting = |restart| if restart == RestartPolicy::OnDemand { restart } else { RestartPolicy::Always };
        let lasting = |one: GroupPolicy| GroupPolicy { restart: lasting(one.restart), ..one };
        let mut model = model(policies.into_iter().map(lasting).collect());
        model.send(SupervisorEvent::Time);
        for action in actions.into_iter().filter(|action| !matches!(action, Action::Stops)) {
            model.perform(action);
        }
        let is_at_rest = |model: &Model| (0..model.wanted.len()).map(GroupId).all(|group| {
            let counts = model.core.census(group);
            let spare = counts.ready.checked_sub(counts.wanted);
            let may_be_more = model.policies[group.0].restart == RestartPolicy::OnDemand;
            spare.is_some_and(|spare| spare == 0 || may_be_more) && counts.starting + counts.stopping == 0
        });
        for _ in 0..2000 {
            if is_at_rest(&model) {
                break;
            }
            let stages: Vec<(ChildId, StopStage)> = model.children.iter().map(|(id, (_, stage))| (*id, *stage)).collect();
            for (child, stage) in stages {
                match stage {
                    StopStage::Running => {
                        model.send(SupervisorEvent::Continued(child));
                        model.ready(child);
                        model.send(SupervisorEvent::Measured { child, tasks: 0, rss: None });
                    }
                    _ => model.gone(child, ChildExit::Success),
                }
            }
            if let Some(millis) = model.core.wake_at(model.now) {
                model.now = millis.min(model.now + super::tests::millis(500));
            }
            model.send(SupervisorEvent::Time);
        }
        prop_assert!(is_at_rest(&model));
    }
}
