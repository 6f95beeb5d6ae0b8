//! What a core does about each thing that happens.

use std::time::Duration;

use super::*;
use crate::stop::{Stage, StopPolicy};

pub(super) const fn at(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(super) fn policy(replicas: usize) -> Policy {
    Policy {
        replicas,
        on: true,
        restart: Restart::Always,
        stop: StopPolicy { drain: Some(at(5000)), grace: at(2000) },
        parallel: PARALLEL,
        start_within: at(30_000),
        patience: at(1000),
        recycle: Recycle::default(),
        after: Vec::new(),
    }
}

const GROUP: GroupId = GroupId(0);

fn seat(number: usize) -> Seat {
    Seat { group: GROUP, number }
}

fn started(effects: &[Effect]) -> Vec<ChildId> {
    effects.iter().filter_map(|effect| if let Effect::Start(child, _) = effect { Some(*child) } else { None }).collect()
}

/// A core whose children are all ready.
fn up(policy: Policy) -> (Core, Vec<ChildId>) {
    let mut core = Core::new([policy]);
    let children = started(&core.on(Event::Time, at(0)));
    for child in &children {
        core.on(Event::Ready(*child), at(0));
    }
    (core, children)
}

#[test]
fn each_seat_has_one_child_and_who_is_killed_is_replaced_at_once() {
    let (mut core, children) = up(policy(3));
    assert_eq!(children.len(), 3);
    let effects = core.on(Event::Gone(children[1], End::Badly), at(10));
    let another = ChildId(3);
    assert_eq!(effects, [Effect::Say(Notice::Replaced(children[1])), Effect::Start(another, seat(1))]);
    assert_eq!(core.census(GROUP), Census { wanted: 3, starting: 1, ready: 2, ..Census::default() });
    assert!(core.on(Event::Gone(children[1], End::Badly), at(11)).is_empty(), "it was told before");
}

#[test]
fn who_dies_again_and_again_is_braked() {
    let (mut core, mut children) = up(policy(1));
    for round in 0..3 {
        let effects = core.on(Event::Gone(children[0], End::Badly), at(round));
        children = started(&effects);
        assert_eq!(children.len(), 1, "{effects:?}");
        core.on(Event::Ready(children[0]), at(round));
    }
    let effects = core.on(Event::Gone(children[0], End::Well), at(10));
    let braking = Notice::Braking { seat: seat(0), pause: at(500), number: 1 };
    assert!(effects.contains(&Effect::Say(braking)) && started(&effects).is_empty(), "{effects:?}");
    assert_eq!((core.wake_at(at(10)), core.census(GROUP).braking), (Some(at(510)), 1));
    let next = started(&core.on(Event::Time, at(510)));
    // That it is ready says nothing; that it stays so does.
    assert!(core.on(Event::Ready(next[0]), at(520)).is_empty());
    for millis in (1000..10_520).step_by(500) {
        assert!(core.on(Event::Marked(next[0]), at(millis)).is_empty());
    }
    assert_eq!(core.on(Event::Marked(next[0]), at(10_520)), [Effect::Say(Notice::Recovered(seat(0)))]);
}

#[test]
fn who_is_not_even_ready_is_braked_at_its_first_end() {
    let mut core = Core::new([policy(1)]);
    let first = started(&core.on(Event::Time, at(0)));
    assert!(started(&core.on(Event::Gone(first[0], End::Badly), at(5))).is_empty());
    let second = started(&core.on(Event::Time, at(505)));
    assert_eq!(core.on(Event::Ready(second[0]), at(510)), [Effect::Say(Notice::Recovered(seat(0)))]);
}

#[test]
fn the_policy_says_whether_another_comes() {
    for (restart, end, comes) in [
        (Restart::Always, End::Well, true),
        (Restart::OnFailure, End::Well, false),
        (Restart::OnFailure, End::Badly, true),
        (Restart::Never, End::Badly, false),
    ] {
        let (mut core, children) = up(Policy { restart, ..policy(1) });
        let effects = core.on(Event::Gone(children[0], end), at(10));
        assert_eq!(!started(&effects).is_empty(), comes, "{restart:?} {end:?}");
        if !comes {
            assert!(effects.contains(&Effect::Say(Notice::Retired(children[0]))));
            assert!(core.on(Event::Time, at(60_000)).is_empty());
            core.on(Event::Turn(GROUP, false), at(60_001));
            assert_eq!(started(&core.on(Event::Turn(GROUP, true), at(60_002))).len(), 1, "asked for by name");
        }
    }
}

#[test]
fn the_four_stages_come_in_order_and_in_time() {
    let (mut core, children) = up(policy(1));
    let child = children[0];
    let effects = core.on(Event::Stop, at(100));
    assert_eq!(
        effects,
        [Effect::Say(Notice::Ending(child, Why::Asked)), Effect::Tell(child, Stage::Draining)],
        "it may end what it does"
    );
    assert_eq!(core.wake_at(at(100)), Some(at(5100)));
    assert!(core.on(Event::Time, at(5099)).is_empty());
    assert_eq!(core.on(Event::Time, at(5100)), [Effect::Tell(child, Stage::Terminating)]);
    assert_eq!(core.on(Event::Time, at(7100)), [Effect::Tell(child, Stage::Killing)]);
    assert!(!core.is_over());
    assert!(core.on(Event::Gone(child, End::Badly), at(7101)).is_empty());
    assert!(core.is_over());
}

#[test]
fn to_ask_again_is_to_ask_for_the_next_stage() {
    let (mut core, children) = up(policy(1));
    core.on(Event::Stop, at(0));
    assert_eq!(core.on(Event::Stop, at(1)), [Effect::Tell(children[0], Stage::Terminating)]);
    assert_eq!(core.on(Event::Stop, at(2)), [Effect::Tell(children[0], Stage::Killing)]);
    assert!(core.on(Event::Stop, at(3)).is_empty());
}

#[test]
fn the_first_word_hurries_nobody_who_stops_already() {
    let (mut core, children) = up(policy(2));
    core.on(Event::Scale(GROUP, 1), at(1));
    let effects = core.on(Event::Stop, at(2));
    assert!(effects.contains(&Effect::Tell(children[0], Stage::Draining)), "{effects:?}");
    assert!(!effects.iter().any(|effect| matches!(effect, Effect::Tell(child, _) if *child == children[1])));
    assert!(core.on(Event::Stop, at(3)).contains(&Effect::Tell(children[1], Stage::Terminating)));
}

#[test]
fn whoever_stood_still_himself_takes_nobody_for_hung() {
    let (mut core, children) = up(policy(1));
    assert!(core.on(Event::Late, at(60_000)).is_empty());
    assert!(core.on(Event::Time, at(60_999)).is_empty());
    let effects = core.on(Event::Time, at(61_000));
    assert!(effects.contains(&Effect::Tell(children[0], Stage::Killing)), "{effects:?}");
}

#[test]
fn a_group_is_scaled_turned_off_and_on() {
    let (mut core, children) = up(policy(2));
    assert_eq!(started(&core.on(Event::Scale(GROUP, 4), at(1))).len(), 2);
    let effects = core.on(Event::Scale(GROUP, 1), at(2));
    assert_eq!(effects.iter().filter(|effect| matches!(effect, Effect::Tell(_, Stage::Draining))).count(), 3);
    core.on(Event::Gone(children[1], End::Well), at(3));
    assert_eq!(core.census(GROUP), Census { wanted: 1, ready: 1, stopping: 2, ..Census::default() });
    let effects = core.on(Event::Turn(GROUP, false), at(4));
    assert!(effects.contains(&Effect::Tell(children[0], Stage::Draining)), "{effects:?}");
    assert!(started(&core.on(Event::Turn(GROUP, true), at(5))).is_empty(), "the seat is not empty yet");
    assert_eq!(started(&core.on(Event::Gone(children[0], End::Well), at(6))).len(), 1);
}

#[test]
fn each_way_to_hang_is_noticed_and_ends_that_child_alone() {
    let killed = |effects: &[Effect], child, hang| {
        effects.contains(&Effect::Say(Notice::Ending(child, Why::Hung(hang))))
            && effects.contains(&Effect::Tell(child, Stage::Killing))
            && effects.len() == 2
    };
    let mut core = Core::new([policy(1)]);
    let child = started(&core.on(Event::Time, at(0)))[0];
    assert!(killed(&core.on(Event::Time, at(30_000)), child, Hang::Unready));

    let (mut core, children) = up(policy(2));
    core.on(Event::Marked(children[1]), at(900));
    assert_eq!(core.wake_at(at(900)), Some(at(1000)));
    assert!(killed(&core.on(Event::Time, at(1000)), children[0], Hang::Silent));

    let (mut core, children) = up(policy(1));
    core.on(Event::Suspended(children[0]), at(500));
    core.on(Event::Continued(children[0]), at(1400));
    assert!(core.on(Event::Time, at(2399)).is_empty(), "it goes on");
    core.on(Event::Suspended(children[0]), at(2399));
    assert!(killed(&core.on(Event::Time, at(3399)), children[0], Hang::Suspended));

    let (mut core, children) = up(policy(1));
    assert!(killed(&core.on(Event::Hung(children[0], Hang::Overdue), at(5)), children[0], Hang::Overdue));
    assert!(core.on(Event::Hung(children[0], Hang::Overdue), at(6)).is_empty());
    assert_eq!(started(&core.on(Event::Gone(children[0], End::Badly), at(7))).len(), 1);
}

#[test]
fn one_at_a_time_is_recycled() {
    let recycle = Recycle { tasks: Some(10), age: Some(at(60_000)), rss: Some(1 << 20), jitter: 0.0 };
    let (mut core, children) = up(Policy { recycle, patience: at(1_000_000), ..policy(2) });
    assert!(core.on(Event::Measured { child: children[0], tasks: 9, rss: Some(5) }, at(1)).is_empty());
    let effects = core.on(Event::Measured { child: children[0], tasks: 10, rss: None }, at(2));
    assert_eq!(effects[0], Effect::Say(Notice::Ending(children[0], Why::Tasks)));
    let late = core.on(Event::Measured { child: children[1], tasks: 0, rss: Some(2 << 20) }, at(3));
    assert!(late.is_empty(), "the other is not there yet");
    let next = started(&core.on(Event::Gone(children[0], End::Well), at(4)))[0];
    let effects = core.on(Event::Ready(next), at(5));
    assert_eq!(effects[0], Effect::Say(Notice::Ending(children[1], Why::Rss)));
    let next = started(&core.on(Event::Gone(children[1], End::Well), at(6)))[0];
    core.on(Event::Ready(next), at(7));
    let effects = core.on(Event::Time, at(60_004));
    assert!(matches!(effects[0], Effect::Say(Notice::Ending(_, Why::Age))), "{effects:?}");
}

#[test]
fn a_seat_that_cannot_be_filled_keeps_no_other_from_being_recycled() {
    let recycle = Recycle { tasks: Some(10), jitter: 0.0, ..Recycle::default() };
    // One is braked: its children die as soon as they are started.
    let mut core = Core::new([Policy { recycle, ..policy(2) }]);
    let children = started(&core.on(Event::Time, at(0)));
    core.on(Event::Ready(children[0]), at(1));
    let due = Event::Measured { child: children[0], tasks: 10, rss: None };
    assert!(core.on(due, at(2)).is_empty(), "the other is about to be there");
    let effects = core.on(Event::Gone(children[1], End::Badly), at(3));
    assert!(effects.contains(&Effect::Say(Notice::Ending(children[0], Why::Tasks))), "{effects:?}");
    // One has retired.
    let (mut core, children) = up(Policy { recycle, restart: Restart::Never, ..policy(2) });
    core.on(Event::Gone(children[1], End::Well), at(1));
    let effects = core.on(Event::Measured { child: children[0], tasks: 10, rss: None }, at(2));
    assert!(effects.contains(&Effect::Say(Notice::Ending(children[0], Why::Tasks))), "{effects:?}");
}

#[test]
fn slow_starters_hold_up_nobody_but_their_own_group() {
    let mut core = Core::new([policy(40), Policy { parallel: 2, ..policy(5) }]);
    let of = |effects: &[Effect], group| {
        let starts = effects.iter().filter(|effect| matches!(effect, Effect::Start(_, seat) if seat.group == group));
        starts.count()
    };
    let effects = core.on(Event::Time, at(0));
    assert_eq!((of(&effects, GROUP), of(&effects, GroupId(1))), (PARALLEL, 2));
    let fast = started(&effects)[PARALLEL];
    let effects = core.on(Event::Ready(fast), at(1));
    assert_eq!((of(&effects, GROUP), of(&effects, GroupId(1))), (0, 1));
}

#[test]
fn bounds_are_spread() {
    let recycle = Recycle { tasks: Some(1000), age: Some(at(1_000_000)), rss: Some(1 << 30), jitter: 0.2 };
    let bounds: Vec<u64> = (0..50).map(|child| recycle.for_child(child).tasks.unwrap()).collect();
    assert!(bounds.iter().all(|tasks| (800..=1200).contains(tasks)), "{bounds:?}");
    assert!(bounds.iter().max().unwrap() - bounds.iter().min().unwrap() > 200);
}

#[test]
fn a_group_waits_for_those_it_comes_after() {
    let mut core = Core::new([Policy { after: vec![GroupId(1)], ..policy(1) }, policy(2)]);
    let effects = core.on(Event::Time, at(0));
    let children = started(&effects);
    assert!(children.len() == 2 && effects.iter().all(|e| matches!(e, Effect::Start(_, s) if s.group == GroupId(1))));
    assert!(core.on(Event::Ready(children[0]), at(1)).is_empty());
    let effects = core.on(Event::Ready(children[1]), at(2));
    assert_eq!(effects, [Effect::Start(ChildId(2), seat(0))]);
}

#[test]
fn what_has_changed_is_renewed_one_after_the_other() {
    let (mut core, children) = up(policy(2));
    let effects = core.on(Event::Renew(GROUP), at(1));
    assert_eq!(effects[0], Effect::Say(Notice::Ending(children[0], Why::Outdated)));
    assert_eq!(effects.len(), 2);
}
