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
        start_within: Some(at(30_000)),
        patience: Some(at(1000)),
        recycle: Recycle::default(),
        after: Vec::new(),
        parallel: PARALLEL,
        brake: Braking::Seat,
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
    assert!(!core.is_over() && !core.is_over_but_for_the_kernel(at(17_099)));
    assert_eq!(core.wake_at(at(7100)), Some(at(17_100)));
    assert!(core.is_over_but_for_the_kernel(at(17_100)), "it cannot be killed");
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
    // Nor for too slow to start.
    let mut core = Core::new([policy(1)]);
    let child = started(&core.on(Event::Time, at(0)))[0];
    assert!(core.on(Event::Late, at(60_000)).is_empty());
    assert!(core.on(Event::Time, at(89_999)).is_empty());
    let effects = core.on(Event::Time, at(90_000));
    assert!(effects.contains(&Effect::Say(Notice::Ending(child, Why::Hung(Hang::Unready)))), "{effects:?}");
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
    let (mut core, children) = up(Policy { recycle, patience: Some(at(1_000_000)), ..policy(2) });
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
fn who_is_ready_in_a_seat_that_is_held_back_stands_for_no_other() {
    let recycle = Recycle { tasks: Some(10), jitter: 0.0, ..Recycle::default() };
    let (mut core, children) = up(Policy { recycle, ..policy(3) });
    // In the first seat they die again and again, soon after they are ready.
    let (mut child, mut now) = (children[0], 1);
    for _ in 0..4 {
        let mut effects = core.on(Event::Gone(child, End::Badly), at(now));
        now += 600;
        effects.extend(core.on(Event::Time, at(now)));
        child = started(&effects)[0];
        for other in &children[1..] {
            core.on(Event::Marked(*other), at(now));
        }
        core.on(Event::Ready(child), at(now));
    }
    assert_eq!((core.census(GROUP).ready, core.census(GROUP).braking), (3, 1));
    core.on(Event::Gone(children[1], End::Badly), at(now));
    let effects = core.on(Event::Measured { child: children[2], tasks: 10, rss: None }, at(now));
    assert_eq!(effects, [], "the second is about to be there");
}

#[test]
fn a_seat_whose_children_never_start_keeps_no_other_empty() {
    let (mut core, children) = up(Policy { brake: Braking::Group, ..policy(2) });
    let mut effects = core.on(Event::Gone(children[0], End::Badly), at(20_000));
    effects.extend(core.on(Event::Gone(children[1], End::Badly), at(20_000)));
    let mut now = 20_000;
    for _ in 0..6 {
        for effect in std::mem::take(&mut effects) {
            if let Effect::Start(child, seat) = effect {
                if seat.number == 1 {
                    return;
                }
                effects.extend(core.on(Event::Gone(child, End::Badly), at(now)));
            }
        }
        now += 60_000;
        effects.extend(core.on(Event::Time, at(now)));
    }
    panic!("nobody was started in the second seat");
}

#[test]
fn those_that_are_ended_together_are_no_loop() {
    let (mut core, children) = up(Policy { brake: Braking::Group, ..policy(8) });
    let ends = children.iter().map(|child| core.on(Event::Gone(*child, End::Badly), at(500)));
    let again: Vec<_> = ends.flat_map(|effects| started(&effects)).collect();
    assert_eq!((again.len(), core.census(GROUP).braking), (8, 0));
}

#[test]
fn bounds_are_spread() {
    let recycle = Recycle { tasks: Some(1000), age: Some(at(1_000_000)), rss: Some(1 << 30), jitter: 0.2 };
    let bounds: Vec<u64> = (0..50).map(|child| recycle.for_child(child).tasks.unwrap()).collect();
    assert!(bounds.iter().all(|tasks| (800..=1000).contains(tasks)), "{bounds:?}");
    assert!(bounds.iter().max().unwrap() - bounds.iter().min().unwrap() > 100);
    let ages: Vec<_> = (0..50).map(|child| recycle.for_child(child).age.unwrap()).collect();
    assert!(ages.iter().any(|age| *age > at(1_000_000)) && ages.iter().any(|age| *age < at(1_000_000)), "{ages:?}");
}

#[test]
fn those_that_are_held_back_are_tried_at_once_when_what_they_need_is_there_again() {
    for brake in [Braking::Seat, Braking::Group] {
        let mut core = Core::new([Policy { brake, ..policy(2) }]);
        let (mut now, mut effects) = (0, core.on(Event::Time, at(0)));
        // As long as a server may be away.
        while now < 75_000 {
            for child in started(&effects) {
                core.on(Event::Gone(child, End::Badly), at(now));
            }
            now = core.wake_at(at(now)).expect("there will be another").as_millis() as u64;
            effects = core.on(Event::Time, at(now));
        }
        for child in started(&effects) {
            core.on(Event::Gone(child, End::Badly), at(now));
        }
        assert!(core.wake_at(at(now)).is_some_and(|next| next > at(now + 5000)), "{brake:?}: they would be late");
        let tried = started(&core.on(Event::Restored, at(now + 1)));
        tried.iter().for_each(|child| _ = core.on(Event::Ready(*child), at(now + 2)));
        let census = core.census(GROUP);
        assert_eq!((census.ready + census.starting, tried.is_empty()), (2, false), "{brake:?}");
    }
}

/// However fast it was, and whatever `restart` says: that is no end of its own.
#[test]
fn one_that_leaves_at_its_bound_of_tasks_is_replaced_at_once() {
    let recycle = Recycle { tasks: Some(2), jitter: 0.0, ..Recycle::default() };
    let (mut core, mut children) = up(Policy { recycle, restart: Restart::Never, ..policy(1) });
    for now in 1..20 {
        core.note(Event::Measured { child: children[0], tasks: 2, rss: None }, at(now));
        let effects = core.on(Event::Gone(children[0], End::Well), at(now));
        children = started(&effects);
        assert!(children.len() == 1 && effects.len() == 1, "{effects:?}");
        core.on(Event::Ready(children[0]), at(now));
    }
    core.note(Event::Measured { child: children[0], tasks: 1, rss: None }, at(30));
    assert_eq!(core.on(Event::Gone(children[0], End::Well), at(30)), [Effect::Say(Notice::Retired(children[0]))]);
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

fn on_demand(parallel: usize) -> Policy {
    let (start_within, patience) = (None, None);
    let (restart, brake) = (Restart::OnDemand, Braking::Group);
    Policy { restart, start_within, patience, parallel, brake, ..policy(0) }
}

#[test]
fn on_demand_children_come_when_they_are_asked_for_and_go_by_themselves() {
    let mut core = Core::new([on_demand(16)]);
    assert!(core.on(Event::Time, at(0)).is_empty());
    let children = started(&core.on(Event::Scale(GROUP, 3), at(1)));
    assert_eq!(children.len(), 3);
    for child in &children {
        assert!(core.on(Event::Ready(*child), at(2)).is_empty());
    }
    assert_eq!(core.wake_at(at(2)), None, "nobody has to be looked at");
    assert!(core.on(Event::Gone(children[0], End::Well), at(3)).is_empty(), "it has done what it was there for");
    assert!(core.on(Event::Gone(children[1], End::Badly), at(3)).is_empty(), "one that dies once is no crash loop");
    assert_eq!(core.census(GROUP), Census { wanted: 1, ready: 1, ..Census::default() });
    assert!(core.on(Event::Scale(GROUP, 0), at(4)).is_empty(), "nobody is sent away");
    assert_eq!(core.on(Event::Scale(GROUP, 2), at(5)), [Effect::Start(ChildId(3), seat(0))], "any seat will do");
    let effects = core.on(Event::Stop, at(6));
    assert_eq!(effects.iter().filter(|effect| matches!(effect, Effect::Tell(_, Stage::Draining))).count(), 2);
}

#[test]
fn on_demand_children_that_die_as_soon_as_they_are_ready_are_braked() {
    let mut core = Core::new([on_demand(16)]);
    let mut starts = 0;
    for now in (0..1000).map(|round| at(10 * round)) {
        for child in started(&core.on(Event::Scale(GROUP, 1), now)) {
            starts += 1;
            core.on(Event::Ready(child), now);
            core.on(Event::Gone(child, End::Badly), now + at(1));
        }
    }
    assert!(starts <= 9, "{starts} in 10 s");
    assert_eq!(core.census(GROUP).braking, 1);
    let now = core.held_until(GROUP, at(10_000)).expect("it is held back");
    let child = started(&core.on(Event::Scale(GROUP, 3), now))[0];
    assert_eq!(started(&core.on(Event::Ready(child), now)).len(), 1, "one at a time");
    assert_eq!(core.census(GROUP).braking, 1, "that one is ready says nothing");
    let effects = core.on(Event::Gone(child, End::Well), now + at(5));
    assert!(effects.iter().any(|effect| matches!(effect, Effect::Say(Notice::Recovered(_)))), "{effects:?}");
    assert_eq!((started(&effects).len(), core.census(GROUP).braking), (1, 0), "the rest at once");
}

#[test]
fn so_many_start_at_a_time_and_the_rest_as_these_are_ready() {
    let mut core = Core::new([on_demand(2)]);
    let first = started(&core.on(Event::Scale(GROUP, 5), at(0)));
    assert_eq!(first.len(), 2);
    assert_eq!(started(&core.on(Event::Ready(first[0]), at(1))).len(), 1);
    core.note(Event::Ready(first[1]), at(2));
    assert!(core.on(Event::Scale(GROUP, 3), at(2)).is_empty(), "there is no need for more any longer");
    let next = started(&core.on(Event::Scale(GROUP, 4), at(3)));
    assert_eq!(next.len(), 1);
    assert!(core.on(Event::Gone(next[0], End::Well), at(4)).is_empty(), "its place is gone with it");
}

#[test]
fn a_group_is_held_back_as_one_and_one_is_tried_first() {
    let mut core = Core::new([on_demand(16)]);
    let first = started(&core.on(Event::Scale(GROUP, 3), at(0)));
    let effects = core.on(Event::Gone(first[0], End::Badly), at(1));
    let braking = Notice::Braking { seat: seat(0), pause: at(500), number: 1 };
    assert_eq!(effects, [Effect::Say(braking)]);
    for child in &first[1..] {
        assert!(core.on(Event::Gone(*child, End::Badly), at(2)).is_empty(), "they were started with the first");
    }
    assert!(core.on(Event::Scale(GROUP, 3), at(3)).is_empty());
    assert_eq!((core.wake_at(at(3)), core.census(GROUP).braking), (Some(at(501)), 1));
    let tried = started(&core.on(Event::Time, at(501)));
    assert_eq!(tried.len(), 1, "to see whether it is still so");
    let effects = core.on(Event::Ready(tried[0]), at(510));
    assert!(effects.contains(&Effect::Say(Notice::Recovered(seat(0)))) && started(&effects).len() == 2, "{effects:?}");
    assert!(core.on(Event::Refused(GROUP), at(511)).contains(&Effect::Say(braking)), "nothing to start them from");
    assert_eq!(core.held_until(GROUP, at(511)), Some(at(1011)));
    // One that is told to leave while it starts is not stillborn.
    assert!(core.on(Event::Gone(started(&effects)[0], End::Well), at(511)).is_empty());
}

#[test]
fn others_that_are_well_do_not_release_one_that_is_not() {
    let (mut core, mut children) = up(Policy { brake: Braking::Group, patience: None, ..policy(2) });
    // The first had been well for long, as the other still is.
    for round in 0..5 {
        let effects = core.on(Event::Gone(children[0], End::Badly), at(20_000 + round));
        let next = started(&effects);
        assert_eq!(next.len(), usize::from(round < 4), "{effects:?}");
        for child in next {
            children[0] = child;
            core.on(Event::Ready(child), at(20_000 + round));
        }
    }
    assert_eq!((core.wake_at(at(20_010)), core.census(GROUP).braking), (Some(at(20_504)), 1));
}

#[test]
fn what_somebody_else_has_started_is_kept_like_the_others() {
    let mut core = Core::new([on_demand(16)]);
    let child = core.adopt(GROUP, at(1));
    assert_eq!(core.census(GROUP), Census { wanted: 1, ready: 1, ..Census::default() });
    assert!(core.on(Event::Time, at(2)).is_empty());
    assert_eq!(started(&core.on(Event::Scale(GROUP, 2), at(3))).len(), 1);
    assert!(core.on(Event::Stop, at(4)).contains(&Effect::Tell(child, Stage::Draining)));
    let late = core.adopt(GROUP, at(5));
    assert!(core.on(Event::Time, at(5)).contains(&Effect::Tell(late, Stage::Draining)), "nobody stays");
    assert!(core.on(Event::Gone(late, End::Badly), at(6)).is_empty());
}

#[test]
fn who_is_broken_is_cancelled_and_replaced() {
    let (mut core, children) = up(policy(1));
    let effects = core.on(Event::Broken(children[0]), at(1));
    let ending = Effect::Say(Notice::Ending(children[0], Why::Broken));
    assert_eq!(effects, [ending, Effect::Tell(children[0], Stage::Terminating)]);
    assert!(core.on(Event::Broken(children[0]), at(2)).is_empty());
    assert_eq!(core.on(Event::Time, at(2001)), [Effect::Tell(children[0], Stage::Killing)]);
    assert_eq!(started(&core.on(Event::Gone(children[0], End::Well), at(2002))).len(), 1);
}

#[test]
fn who_is_broken_is_hurried_no_further_than_the_others() {
    let (mut core, children) = up(policy(2));
    core.on(Event::Broken(children[0]), at(1));
    let told = |effects: Vec<Effect>| {
        let tells = effects.into_iter().filter(|effect| matches!(effect, Effect::Tell(..)));
        tells.collect::<Vec<_>>()
    };
    let [broken, other] = [0, 1].map(|number| move |children: &[ChildId], stage| Effect::Tell(children[number], stage));
    assert_eq!(told(core.on(Event::Stop, at(2))), [other(&children, Stage::Draining)]);
    assert_eq!(told(core.on(Event::Stop, at(3))), [other(&children, Stage::Terminating)], "it has its grace");
    let both = [broken(&children, Stage::Killing), other(&children, Stage::Killing)];
    assert_eq!(told(core.on(Event::Stop, at(4))), both);
}

#[test]
fn how_to_stop_may_be_said_when_it_is_asked_for() {
    for (stop, first, wake) in [
        (StopPolicy::cancel(at(10)), Stage::Terminating, Some(at(110))),
        (StopPolicy::drain(at(10)), Stage::Draining, None),
        (StopPolicy { drain: Some(at(5)), grace: at(10) }, Stage::Draining, Some(at(105))),
    ] {
        let (mut core, children) = up(policy(1));
        core.note(Event::Patience(GROUP, stop), at(100));
        assert!(core.on(Event::Stop, at(100)).contains(&Effect::Tell(children[0], first)), "{stop:?}");
        assert_eq!((core.stage(GROUP), core.wake_at(at(100))), (first, wake));
    }
}

#[test]
fn a_group_that_is_empty_goes_through_the_stages_too() {
    let mut core = Core::new([Policy { stop: StopPolicy::drain(at(10)), ..on_demand(1) }]);
    core.on(Event::Stop, at(0));
    assert!(core.is_over() && core.stage(GROUP) == Stage::Draining && core.wake_at(at(0)).is_none());
    core.on(Event::Stop, at(1));
    assert_eq!((core.stage(GROUP), core.wake_at(at(1))), (Stage::Terminating, Some(at(11))));
    core.on(Event::Time, at(11));
    assert_eq!((core.stage(GROUP), core.wake_at(at(11))), (Stage::Killing, None));
}
