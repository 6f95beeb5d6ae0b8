//! Reactions of a `Supervisor` to single events.

use std::time::Duration;

use raddle_model::stop::{StopPolicy, StopStage};

use super::*;

pub(crate) const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(crate) fn policy(replicas: usize) -> GroupPolicy {
    GroupPolicy {
        replicas,
        on: true,
        restart: RestartPolicy::Always,
        stop: StopPolicy {
            drain: Some(millis(5000)),
            grace: millis(2000),
        },
        start_timeout: Some(millis(30_000)),
        hang_timeout: Some(millis(1000)),
        recycle: RecyclePolicy::default(),
        after: Vec::new(),
        parallel: PARALLEL,
        backoff_scope: BackoffScope::Slot,
    }
}

const GROUP: GroupId = GroupId(0);

fn slot(number: usize) -> ReplicaSlot {
    ReplicaSlot {
        group: GROUP,
        number,
    }
}

fn started(effects: &[SupervisorEffect]) -> Vec<ChildId> {
    effects
        .iter()
        .filter_map(|effect| {
            if let SupervisorEffect::Start(child, _) = effect {
                Some(*child)
            } else {
                None
            }
        })
        .collect()
}

/// Creates a supervisor whose children are all ready.
fn up(policy: GroupPolicy) -> (Supervisor, Vec<ChildId>) {
    let mut core = Supervisor::new([policy]);
    let children = started(&core.on(SupervisorEvent::Time, millis(0)));
    for child in &children {
        core.on(SupervisorEvent::Ready(*child), millis(0));
    }
    (core, children)
}

#[test]
fn replaces_a_killed_child_immediately() {
    let (mut core, children) = up(policy(3));
    assert_eq!(children.len(), 3);
    let effects = core.on(
        SupervisorEvent::Exited(children[1], ChildExit::Failure),
        millis(10),
    );
    let another = ChildId(3);
    assert_eq!(
        effects,
        [
            SupervisorEffect::Notify(SupervisorNotice::Replaced(children[1])),
            SupervisorEffect::Start(another, slot(1))
        ]
    );
    assert_eq!(
        core.census(GROUP),
        GroupCounts {
            wanted: 3,
            starting: 1,
            ready: 2,
            ..GroupCounts::default()
        }
    );
    assert!(
        core.on(
            SupervisorEvent::Exited(children[1], ChildExit::Failure),
            millis(11)
        )
        .is_empty(),
        "the exit was reported before"
    );
}

#[test]
fn backs_off_after_repeated_early_exits() {
    let (mut core, mut children) = up(policy(1));
    for round in 0..3 {
        let effects = core.on(
            SupervisorEvent::Exited(children[0], ChildExit::Failure),
            millis(round),
        );
        children = started(&effects);
        assert_eq!(children.len(), 1, "{effects:?}");
        core.on(SupervisorEvent::Ready(children[0]), millis(round));
    }
    let effects = core.on(
        SupervisorEvent::Exited(children[0], ChildExit::Success),
        millis(10),
    );
    let backing_off = SupervisorNotice::BackingOff {
        slot: slot(0),
        pause: millis(500),
        number: 1,
    };
    assert!(
        effects.contains(&SupervisorEffect::Notify(backing_off)) && started(&effects).is_empty(),
        "{effects:?}"
    );
    assert_eq!(
        (core.wake_at(millis(10)), core.census(GROUP).backing_off),
        (Some(millis(510)), 1)
    );
    let next = started(&core.on(SupervisorEvent::Time, millis(510)));
    // Becoming ready proves nothing; staying ready does.
    assert!(
        core.on(SupervisorEvent::Ready(next[0]), millis(520))
            .is_empty()
    );
    for time in (1000..10_520).step_by(500) {
        assert!(
            core.on(SupervisorEvent::Heartbeat(next[0]), millis(time))
                .is_empty()
        );
    }
    assert_eq!(
        core.on(SupervisorEvent::Heartbeat(next[0]), millis(10_520)),
        [SupervisorEffect::Notify(SupervisorNotice::Recovered(slot(
            0
        )))]
    );
}

#[test]
fn backs_off_after_one_failed_start() {
    let mut core = Supervisor::new([policy(1)]);
    let first = started(&core.on(SupervisorEvent::Time, millis(0)));
    assert!(
        started(&core.on(
            SupervisorEvent::Exited(first[0], ChildExit::Failure),
            millis(5)
        ))
        .is_empty()
    );
    let second = started(&core.on(SupervisorEvent::Time, millis(505)));
    assert_eq!(
        core.on(SupervisorEvent::Ready(second[0]), millis(510)),
        [SupervisorEffect::Notify(SupervisorNotice::Recovered(slot(
            0
        )))]
    );
}

#[test]
fn restart_policy_decides_on_replacement() {
    for (restart, end, comes) in [
        (RestartPolicy::Always, ChildExit::Success, true),
        (RestartPolicy::OnFailure, ChildExit::Success, false),
        (RestartPolicy::OnFailure, ChildExit::Failure, true),
        (RestartPolicy::Never, ChildExit::Failure, false),
    ] {
        let (mut core, children) = up(GroupPolicy {
            restart,
            ..policy(1)
        });
        let effects = core.on(SupervisorEvent::Exited(children[0], end), millis(10));
        assert_eq!(!started(&effects).is_empty(), comes, "{restart:?} {end:?}");
        if !comes {
            assert!(
                effects.contains(&SupervisorEffect::Notify(SupervisorNotice::Retired(
                    children[0]
                )))
            );
            assert!(core.on(SupervisorEvent::Time, millis(60_000)).is_empty());
            core.on(SupervisorEvent::Switch(GROUP, false), millis(60_001));
            assert_eq!(
                started(&core.on(SupervisorEvent::Switch(GROUP, true), millis(60_002))).len(),
                1,
                "it was requested explicitly"
            );
        }
    }
}

#[test]
fn stop_stages_come_in_order_and_on_time() {
    let (mut core, children) = up(policy(1));
    let child = children[0];
    let effects = core.on(SupervisorEvent::Stop, millis(100));
    assert_eq!(
        effects,
        [
            SupervisorEffect::Notify(SupervisorNotice::Stopping(child, StopReason::Requested)),
            SupervisorEffect::SetStopStage(child, StopStage::Draining)
        ],
        "the child may finish its work"
    );
    assert_eq!(core.wake_at(millis(100)), Some(millis(5100)));
    assert!(core.on(SupervisorEvent::Time, millis(5099)).is_empty());
    assert_eq!(
        core.on(SupervisorEvent::Time, millis(5100)),
        [SupervisorEffect::SetStopStage(
            child,
            StopStage::Terminating
        )]
    );
    assert_eq!(
        core.on(SupervisorEvent::Time, millis(7100)),
        [SupervisorEffect::SetStopStage(child, StopStage::Killing)]
    );
    assert!(!core.is_over() && !core.is_over_but_for_the_kernel(millis(17_099)));
    assert_eq!(core.wake_at(millis(7100)), Some(millis(17_100)));
    assert!(
        core.is_over_but_for_the_kernel(millis(17_100)),
        "the kernel does not end the child"
    );
    assert!(
        core.on(
            SupervisorEvent::Exited(child, ChildExit::Failure),
            millis(7101)
        )
        .is_empty()
    );
    assert!(core.is_over());
}

#[test]
fn each_stop_request_advances_one_stage() {
    let (mut core, children) = up(policy(1));
    core.on(SupervisorEvent::Stop, millis(0));
    assert_eq!(
        core.on(SupervisorEvent::Stop, millis(1)),
        [SupervisorEffect::SetStopStage(
            children[0],
            StopStage::Terminating
        )]
    );
    assert_eq!(
        core.on(SupervisorEvent::Stop, millis(2)),
        [SupervisorEffect::SetStopStage(
            children[0],
            StopStage::Killing
        )]
    );
    assert!(core.on(SupervisorEvent::Stop, millis(3)).is_empty());
}

#[test]
fn first_stop_request_does_not_hurry_stopping_children() {
    let (mut core, children) = up(policy(2));
    core.on(SupervisorEvent::Scale(GROUP, 1), millis(1));
    let effects = core.on(SupervisorEvent::Stop, millis(2));
    assert!(
        effects.contains(&SupervisorEffect::SetStopStage(
            children[0],
            StopStage::Draining
        )),
        "{effects:?}"
    );
    assert!(!effects.iter().any(
        |effect| matches!(effect, SupervisorEffect::SetStopStage(child, _) if *child == children[1])
    ));
    assert!(
        core.on(SupervisorEvent::Stop, millis(3))
            .contains(&SupervisorEffect::SetStopStage(
                children[1],
                StopStage::Terminating
            ))
    );
}

#[test]
fn a_stalled_supervisor_does_not_treat_children_as_hung() {
    let (mut core, children) = up(policy(1));
    assert!(core.on(SupervisorEvent::Stalled, millis(60_000)).is_empty());
    assert!(core.on(SupervisorEvent::Time, millis(60_999)).is_empty());
    let effects = core.on(SupervisorEvent::Time, millis(61_000));
    assert!(
        effects.contains(&SupervisorEffect::SetStopStage(
            children[0],
            StopStage::Killing
        )),
        "{effects:?}"
    );
    // The stalled time does not count against a starting child either.
    let mut core = Supervisor::new([policy(1)]);
    let child = started(&core.on(SupervisorEvent::Time, millis(0)))[0];
    assert!(core.on(SupervisorEvent::Stalled, millis(60_000)).is_empty());
    assert!(core.on(SupervisorEvent::Time, millis(89_999)).is_empty());
    let effects = core.on(SupervisorEvent::Time, millis(90_000));
    assert!(
        effects.contains(&SupervisorEffect::Notify(SupervisorNotice::Stopping(
            child,
            StopReason::Hung(HangKind::Unready)
        ))),
        "{effects:?}"
    );
}

#[test]
fn scales_and_switches_a_group() {
    let (mut core, children) = up(policy(2));
    assert_eq!(
        started(&core.on(SupervisorEvent::Scale(GROUP, 4), millis(1))).len(),
        2
    );
    let effects = core.on(SupervisorEvent::Scale(GROUP, 1), millis(2));
    assert_eq!(
        effects
            .iter()
            .filter(|effect| matches!(
                effect,
                SupervisorEffect::SetStopStage(_, StopStage::Draining)
            ))
            .count(),
        3
    );
    core.on(
        SupervisorEvent::Exited(children[1], ChildExit::Success),
        millis(3),
    );
    assert_eq!(
        core.census(GROUP),
        GroupCounts {
            wanted: 1,
            ready: 1,
            stopping: 2,
            ..GroupCounts::default()
        }
    );
    let effects = core.on(SupervisorEvent::Switch(GROUP, false), millis(4));
    assert!(
        effects.contains(&SupervisorEffect::SetStopStage(
            children[0],
            StopStage::Draining
        )),
        "{effects:?}"
    );
    assert!(
        started(&core.on(SupervisorEvent::Switch(GROUP, true), millis(5))).is_empty(),
        "the slot is not empty yet"
    );
    assert_eq!(
        started(&core.on(
            SupervisorEvent::Exited(children[0], ChildExit::Success),
            millis(6)
        ))
        .len(),
        1
    );
}

#[test]
fn kills_only_the_hung_child() {
    let killed = |effects: &[SupervisorEffect], child, hang| {
        effects.contains(&SupervisorEffect::Notify(SupervisorNotice::Stopping(
            child,
            StopReason::Hung(hang),
        ))) && effects.contains(&SupervisorEffect::SetStopStage(child, StopStage::Killing))
            && effects.len() == 2
    };
    let mut core = Supervisor::new([policy(1)]);
    let child = started(&core.on(SupervisorEvent::Time, millis(0)))[0];
    assert!(killed(
        &core.on(SupervisorEvent::Time, millis(30_000)),
        child,
        HangKind::Unready
    ));

    let (mut core, children) = up(policy(2));
    core.on(SupervisorEvent::Heartbeat(children[1]), millis(900));
    assert_eq!(core.wake_at(millis(900)), Some(millis(1000)));
    assert!(killed(
        &core.on(SupervisorEvent::Time, millis(1000)),
        children[0],
        HangKind::Silent
    ));

    let (mut core, children) = up(policy(1));
    core.on(SupervisorEvent::Suspended(children[0]), millis(500));
    core.on(SupervisorEvent::Continued(children[0]), millis(1400));
    assert!(
        core.on(SupervisorEvent::Time, millis(2399)).is_empty(),
        "the process continues"
    );
    core.on(SupervisorEvent::Suspended(children[0]), millis(2399));
    assert!(killed(
        &core.on(SupervisorEvent::Time, millis(3399)),
        children[0],
        HangKind::Suspended
    ));

    let (mut core, children) = up(policy(1));
    assert!(killed(
        &core.on(
            SupervisorEvent::Hung(children[0], HangKind::Overdue),
            millis(5)
        ),
        children[0],
        HangKind::Overdue
    ));
    assert!(
        core.on(
            SupervisorEvent::Hung(children[0], HangKind::Overdue),
            millis(6)
        )
        .is_empty()
    );
    assert_eq!(
        started(&core.on(
            SupervisorEvent::Exited(children[0], ChildExit::Failure),
            millis(7)
        ))
        .len(),
        1
    );
}

#[test]
fn recycles_one_child_at_a_time() {
    let recycle = RecyclePolicy {
        tasks: Some(10),
        age: Some(millis(60_000)),
        rss: Some(1 << 20),
        jitter: 0.0,
    };
    let (mut core, children) = up(GroupPolicy {
        recycle,
        hang_timeout: Some(millis(1_000_000)),
        ..policy(2)
    });
    assert!(
        core.on(
            SupervisorEvent::Measured {
                child: children[0],
                tasks: 9,
                rss: Some(5)
            },
            millis(1)
        )
        .is_empty()
    );
    let effects = core.on(
        SupervisorEvent::Measured {
            child: children[0],
            tasks: 10,
            rss: None,
        },
        millis(2),
    );
    assert_eq!(
        effects[0],
        SupervisorEffect::Notify(SupervisorNotice::Stopping(children[0], StopReason::Tasks))
    );
    let late = core.on(
        SupervisorEvent::Measured {
            child: children[1],
            tasks: 0,
            rss: Some(2 << 20),
        },
        millis(3),
    );
    assert!(late.is_empty(), "the other is not there yet");
    let next = started(&core.on(
        SupervisorEvent::Exited(children[0], ChildExit::Success),
        millis(4),
    ))[0];
    let effects = core.on(SupervisorEvent::Ready(next), millis(5));
    assert_eq!(
        effects[0],
        SupervisorEffect::Notify(SupervisorNotice::Stopping(children[1], StopReason::Rss))
    );
    let next = started(&core.on(
        SupervisorEvent::Exited(children[1], ChildExit::Success),
        millis(6),
    ))[0];
    core.on(SupervisorEvent::Ready(next), millis(7));
    let effects = core.on(SupervisorEvent::Time, millis(60_004));
    assert!(
        matches!(
            effects[0],
            SupervisorEffect::Notify(SupervisorNotice::Stopping(_, StopReason::Age))
        ),
        "{effects:?}"
    );
}

#[test]
fn unhealthy_slots_do_not_block_recycling() {
    let recycle = RecyclePolicy {
        tasks: Some(10),
        jitter: 0.0,
        ..RecyclePolicy::default()
    };
    // One slot backs off: its children die right after their start.
    let mut core = Supervisor::new([GroupPolicy {
        recycle,
        ..policy(2)
    }]);
    let children = started(&core.on(SupervisorEvent::Time, millis(0)));
    core.on(SupervisorEvent::Ready(children[0]), millis(1));
    let due = SupervisorEvent::Measured {
        child: children[0],
        tasks: 10,
        rss: None,
    };
    assert!(
        core.on(due, millis(2)).is_empty(),
        "the other is about to be there"
    );
    let effects = core.on(
        SupervisorEvent::Exited(children[1], ChildExit::Failure),
        millis(3),
    );
    assert!(
        effects.contains(&SupervisorEffect::Notify(SupervisorNotice::Stopping(
            children[0],
            StopReason::Tasks
        ))),
        "{effects:?}"
    );
    // One slot is retired.
    let (mut core, children) = up(GroupPolicy {
        recycle,
        restart: RestartPolicy::Never,
        ..policy(2)
    });
    core.on(
        SupervisorEvent::Exited(children[1], ChildExit::Success),
        millis(1),
    );
    let effects = core.on(
        SupervisorEvent::Measured {
            child: children[0],
            tasks: 10,
            rss: None,
        },
        millis(2),
    );
    assert!(
        effects.contains(&SupervisorEffect::Notify(SupervisorNotice::Stopping(
            children[0],
            StopReason::Tasks
        ))),
        "{effects:?}"
    );
}

#[test]
fn slow_starts_do_not_delay_other_groups() {
    let mut core = Supervisor::new([
        policy(40),
        GroupPolicy {
            parallel: 2,
            ..policy(5)
        },
    ]);
    let of = |effects: &[SupervisorEffect], group| {
        let starts = effects.iter().filter(
            |effect| matches!(effect, SupervisorEffect::Start(_, slot) if slot.group == group),
        );
        starts.count()
    };
    let effects = core.on(SupervisorEvent::Time, millis(0));
    assert_eq!(
        (of(&effects, GROUP), of(&effects, GroupId(1))),
        (PARALLEL, 2)
    );
    let fast = started(&effects)[PARALLEL];
    let effects = core.on(SupervisorEvent::Ready(fast), millis(1));
    assert_eq!((of(&effects, GROUP), of(&effects, GroupId(1))), (0, 1));
}

#[test]
fn ready_children_of_unhealthy_slots_do_not_count_for_recycling() {
    let recycle = RecyclePolicy {
        tasks: Some(10),
        jitter: 0.0,
        ..RecyclePolicy::default()
    };
    let (mut core, children) = up(GroupPolicy {
        recycle,
        ..policy(3)
    });
    // In the first slot, children die repeatedly soon after they are ready.
    let (mut child, mut now) = (children[0], 1);
    for _ in 0..4 {
        let mut effects = core.on(
            SupervisorEvent::Exited(child, ChildExit::Failure),
            millis(now),
        );
        now += 600;
        effects.extend(core.on(SupervisorEvent::Time, millis(now)));
        child = started(&effects)[0];
        for other in &children[1..] {
            core.on(SupervisorEvent::Heartbeat(*other), millis(now));
        }
        core.on(SupervisorEvent::Ready(child), millis(now));
    }
    assert_eq!(
        (core.census(GROUP).ready, core.census(GROUP).backing_off),
        (3, 1)
    );
    core.on(
        SupervisorEvent::Exited(children[1], ChildExit::Failure),
        millis(now),
    );
    let effects = core.on(
        SupervisorEvent::Measured {
            child: children[2],
            tasks: 10,
            rss: None,
        },
        millis(now),
    );
    assert_eq!(effects, [], "the second is about to be there");
}

#[test]
fn a_failing_slot_does_not_starve_others() {
    let (mut core, children) = up(GroupPolicy {
        backoff_scope: BackoffScope::Group,
        ..policy(2)
    });
    let mut effects = core.on(
        SupervisorEvent::Exited(children[0], ChildExit::Failure),
        millis(20_000),
    );
    effects.extend(core.on(
        SupervisorEvent::Exited(children[1], ChildExit::Failure),
        millis(20_000),
    ));
    let mut now = 20_000;
    for _ in 0..6 {
        for effect in std::mem::take(&mut effects) {
            if let SupervisorEffect::Start(child, slot) = effect {
                if slot.number == 1 {
                    return;
                }
                effects.extend(core.on(
                    SupervisorEvent::Exited(child, ChildExit::Failure),
                    millis(now),
                ));
            }
        }
        now += 60_000;
        effects.extend(core.on(SupervisorEvent::Time, millis(now)));
    }
    panic!("no child was started in the second slot");
}

#[test]
fn children_killed_together_are_not_a_crash_loop() {
    let (mut core, children) = up(GroupPolicy {
        backoff_scope: BackoffScope::Group,
        ..policy(8)
    });
    let ends = children.iter().map(|child| {
        core.on(
            SupervisorEvent::Exited(*child, ChildExit::Failure),
            millis(500),
        )
    });
    let again: Vec<_> = ends.flat_map(|effects| started(&effects)).collect();
    assert_eq!((again.len(), core.census(GROUP).backing_off), (8, 0));
}

#[test]
fn recycle_limits_are_jittered() {
    let recycle = RecyclePolicy {
        tasks: Some(1000),
        age: Some(millis(1_000_000)),
        rss: Some(1 << 30),
        jitter: 0.2,
    };
    let bounds: Vec<u64> = (0..50)
        .map(|child| recycle.for_child(child).tasks.unwrap())
        .collect();
    assert!(
        bounds.iter().all(|tasks| (800..=1000).contains(tasks)),
        "{bounds:?}"
    );
    assert!(bounds.iter().max().unwrap() - bounds.iter().min().unwrap() > 100);
    let ages: Vec<_> = (0..50)
        .map(|child| recycle.for_child(child).age.unwrap())
        .collect();
    assert!(
        ages.iter().any(|age| *age > millis(1_000_000))
            && ages.iter().any(|age| *age < millis(1_000_000)),
        "{ages:?}"
    );
}

#[test]
fn restored_dependency_ends_backoff() {
    for backoff_scope in [BackoffScope::Slot, BackoffScope::Group] {
        let mut core = Supervisor::new([GroupPolicy {
            backoff_scope,
            ..policy(2)
        }]);
        let (mut now, mut effects) = (0, core.on(SupervisorEvent::Time, millis(0)));
        // As long as a server may be unavailable.
        while now < 75_000 {
            for child in started(&effects) {
                core.on(
                    SupervisorEvent::Exited(child, ChildExit::Failure),
                    millis(now),
                );
            }
            now = core
                .wake_at(millis(now))
                .expect("there will be another")
                .as_millis() as u64;
            effects = core.on(SupervisorEvent::Time, millis(now));
        }
        for child in started(&effects) {
            core.on(
                SupervisorEvent::Exited(child, ChildExit::Failure),
                millis(now),
            );
        }
        assert!(
            core.wake_at(millis(now))
                .is_some_and(|next| next > millis(now + 5000)),
            "{backoff_scope:?}: they would be late"
        );
        let tried = started(&core.on(SupervisorEvent::Restored, millis(now + 1)));
        tried
            .iter()
            .for_each(|child| _ = core.on(SupervisorEvent::Ready(*child), millis(now + 2)));
        let census = core.census(GROUP);
        assert_eq!(
            (census.ready + census.starting, tried.is_empty()),
            (2, false),
            "{backoff_scope:?}"
        );
    }
}

/// However fast it exited and whatever `restart` says: reaching the task limit is not a failure.
#[test]
fn replaces_a_child_that_exits_at_its_task_limit() {
    let recycle = RecyclePolicy {
        tasks: Some(2),
        jitter: 0.0,
        ..RecyclePolicy::default()
    };
    let (mut core, mut children) = up(GroupPolicy {
        recycle,
        restart: RestartPolicy::Never,
        ..policy(1)
    });
    for now in 1..20 {
        core.note(
            SupervisorEvent::Measured {
                child: children[0],
                tasks: 2,
                rss: None,
            },
            millis(now),
        );
        let effects = core.on(
            SupervisorEvent::Exited(children[0], ChildExit::Success),
            millis(now),
        );
        children = started(&effects);
        assert!(children.len() == 1 && effects.len() == 1, "{effects:?}");
        core.on(SupervisorEvent::Ready(children[0]), millis(now));
    }
    core.note(
        SupervisorEvent::Measured {
            child: children[0],
            tasks: 1,
            rss: None,
        },
        millis(30),
    );
    assert_eq!(
        core.on(
            SupervisorEvent::Exited(children[0], ChildExit::Success),
            millis(30)
        ),
        [SupervisorEffect::Notify(SupervisorNotice::Retired(
            children[0]
        ))]
    );
}

#[test]
fn waits_for_groups_it_depends_on() {
    let mut core = Supervisor::new([
        GroupPolicy {
            after: vec![GroupId(1)],
            ..policy(1)
        },
        policy(2),
    ]);
    let effects = core.on(SupervisorEvent::Time, millis(0));
    let children = started(&effects);
    assert!(
        children.len() == 2
            && effects
                .iter()
                .all(|e| matches!(e, SupervisorEffect::Start(_, s) if s.group == GroupId(1)))
    );
    assert!(
        core.on(SupervisorEvent::Ready(children[0]), millis(1))
            .is_empty()
    );
    let effects = core.on(SupervisorEvent::Ready(children[1]), millis(2));
    assert_eq!(effects, [SupervisorEffect::Start(ChildId(2), slot(0))]);
}

#[test]
fn renews_outdated_children_one_by_one() {
    let (mut core, children) = up(policy(2));
    let effects = core.on(SupervisorEvent::Renew(GROUP), millis(1));
    assert_eq!(
        effects[0],
        SupervisorEffect::Notify(SupervisorNotice::Stopping(
            children[0],
            StopReason::Outdated
        ))
    );
    assert_eq!(effects.len(), 2);
}

fn on_demand(parallel: usize) -> GroupPolicy {
    let (start_timeout, hang_timeout) = (None, None);
    let (restart, backoff_scope) = (RestartPolicy::OnDemand, BackoffScope::Group);
    GroupPolicy {
        restart,
        start_timeout,
        hang_timeout,
        parallel,
        backoff_scope,
        ..policy(0)
    }
}

#[test]
fn on_demand_children_start_on_request_and_exit_by_themselves() {
    let mut core = Supervisor::new([on_demand(16)]);
    assert!(core.on(SupervisorEvent::Time, millis(0)).is_empty());
    let children = started(&core.on(SupervisorEvent::Scale(GROUP, 3), millis(1)));
    assert_eq!(children.len(), 3);
    for child in &children {
        assert!(
            core.on(SupervisorEvent::Ready(*child), millis(2))
                .is_empty()
        );
    }
    assert_eq!(core.wake_at(millis(2)), None, "no child needs attention");
    assert!(
        core.on(
            SupervisorEvent::Exited(children[0], ChildExit::Success),
            millis(3)
        )
        .is_empty(),
        "it has done what it was there for"
    );
    assert!(
        core.on(
            SupervisorEvent::Exited(children[1], ChildExit::Failure),
            millis(3)
        )
        .is_empty(),
        "one that dies once is no crash loop"
    );
    assert_eq!(
        core.census(GROUP),
        GroupCounts {
            wanted: 1,
            ready: 1,
            ..GroupCounts::default()
        }
    );
    assert!(
        core.on(SupervisorEvent::Scale(GROUP, 0), millis(4))
            .is_empty(),
        "no child is stopped"
    );
    assert_eq!(
        core.on(SupervisorEvent::Scale(GROUP, 2), millis(5)),
        [SupervisorEffect::Start(ChildId(3), slot(0))],
        "any slot will do"
    );
    let effects = core.on(SupervisorEvent::Stop, millis(6));
    assert_eq!(
        effects
            .iter()
            .filter(|effect| matches!(
                effect,
                SupervisorEffect::SetStopStage(_, StopStage::Draining)
            ))
            .count(),
        2
    );
}

#[test]
fn backs_off_when_on_demand_children_die_early() {
    let mut core = Supervisor::new([on_demand(16)]);
    let mut starts = 0;
    for now in (0..1000).map(|round| millis(10 * round)) {
        for child in started(&core.on(SupervisorEvent::Scale(GROUP, 1), now)) {
            starts += 1;
            core.on(SupervisorEvent::Ready(child), now);
            core.on(
                SupervisorEvent::Exited(child, ChildExit::Failure),
                now + millis(1),
            );
        }
    }
    assert!(starts <= 9, "{starts} in 10 s");
    assert_eq!(core.census(GROUP).backing_off, 1);
    let now = core
        .held_until(GROUP, millis(10_000))
        .expect("it is held back");
    let child = started(&core.on(SupervisorEvent::Scale(GROUP, 3), now))[0];
    assert_eq!(
        started(&core.on(SupervisorEvent::Ready(child), now)).len(),
        1,
        "one at a time"
    );
    assert_eq!(
        core.census(GROUP).backing_off,
        1,
        "one ready child proves nothing"
    );
    let effects = core.on(
        SupervisorEvent::Exited(child, ChildExit::Success),
        now + millis(5),
    );
    assert!(
        effects.iter().any(|effect| matches!(
            effect,
            SupervisorEffect::Notify(SupervisorNotice::Recovered(_))
        )),
        "{effects:?}"
    );
    assert_eq!(
        (started(&effects).len(), core.census(GROUP).backing_off),
        (1, 0),
        "the rest at once"
    );
}

#[test]
fn limits_parallel_starts() {
    let mut core = Supervisor::new([on_demand(2)]);
    let first = started(&core.on(SupervisorEvent::Scale(GROUP, 5), millis(0)));
    assert_eq!(first.len(), 2);
    assert_eq!(
        started(&core.on(SupervisorEvent::Ready(first[0]), millis(1))).len(),
        1
    );
    core.note(SupervisorEvent::Ready(first[1]), millis(2));
    assert!(
        core.on(SupervisorEvent::Scale(GROUP, 3), millis(2))
            .is_empty(),
        "there is no need for more any longer"
    );
    let next = started(&core.on(SupervisorEvent::Scale(GROUP, 4), millis(3)));
    assert_eq!(next.len(), 1);
    assert!(
        core.on(
            SupervisorEvent::Exited(next[0], ChildExit::Success),
            millis(4)
        )
        .is_empty(),
        "its slot is gone with it"
    );
}

#[test]
fn group_backoff_probes_with_one_child() {
    let mut core = Supervisor::new([on_demand(16)]);
    let first = started(&core.on(SupervisorEvent::Scale(GROUP, 3), millis(0)));
    let effects = core.on(
        SupervisorEvent::Exited(first[0], ChildExit::Failure),
        millis(1),
    );
    let backing_off = SupervisorNotice::BackingOff {
        slot: slot(0),
        pause: millis(500),
        number: 1,
    };
    assert_eq!(effects, [SupervisorEffect::Notify(backing_off)]);
    for child in &first[1..] {
        assert!(
            core.on(
                SupervisorEvent::Exited(*child, ChildExit::Failure),
                millis(2)
            )
            .is_empty(),
            "they were started with the first"
        );
    }
    assert!(
        core.on(SupervisorEvent::Scale(GROUP, 3), millis(3))
            .is_empty()
    );
    assert_eq!(
        (core.wake_at(millis(3)), core.census(GROUP).backing_off),
        (Some(millis(501)), 1)
    );
    let tried = started(&core.on(SupervisorEvent::Time, millis(501)));
    assert_eq!(tried.len(), 1, "one child is a probe");
    let effects = core.on(SupervisorEvent::Ready(tried[0]), millis(510));
    assert!(
        effects.contains(&SupervisorEffect::Notify(SupervisorNotice::Recovered(
            slot(0)
        ))) && started(&effects).len() == 2,
        "{effects:?}"
    );
    assert!(
        core.on(SupervisorEvent::Refused(GROUP), millis(511))
            .contains(&SupervisorEffect::Notify(backing_off)),
        "no child can be started"
    );
    assert_eq!(core.held_until(GROUP, millis(511)), Some(millis(1011)));
    // A child that is stopped while it starts does not count as a failed start.
    assert!(
        core.on(
            SupervisorEvent::Exited(started(&effects)[0], ChildExit::Success),
            millis(511)
        )
        .is_empty()
    );
}

#[test]
fn healthy_siblings_do_not_end_backoff() {
    let (mut core, mut children) = up(GroupPolicy {
        backoff_scope: BackoffScope::Group,
        hang_timeout: None,
        ..policy(2)
    });
    // The first had been ready for long, like the other one.
    for round in 0..5 {
        let effects = core.on(
            SupervisorEvent::Exited(children[0], ChildExit::Failure),
            millis(20_000 + round),
        );
        let next = started(&effects);
        assert_eq!(next.len(), usize::from(round < 4), "{effects:?}");
        for child in next {
            children[0] = child;
            core.on(SupervisorEvent::Ready(child), millis(20_000 + round));
        }
    }
    assert_eq!(
        (core.wake_at(millis(20_010)), core.census(GROUP).backing_off),
        (Some(millis(20_504)), 1)
    );
}

#[test]
fn supervises_adopted_children() {
    let mut core = Supervisor::new([on_demand(16)]);
    let child = core.adopt(GROUP, millis(1));
    assert_eq!(
        core.census(GROUP),
        GroupCounts {
            wanted: 1,
            ready: 1,
            ..GroupCounts::default()
        }
    );
    assert!(core.on(SupervisorEvent::Time, millis(2)).is_empty());
    assert_eq!(
        started(&core.on(SupervisorEvent::Scale(GROUP, 2), millis(3))).len(),
        1
    );
    assert!(
        core.on(SupervisorEvent::Stop, millis(4))
            .contains(&SupervisorEffect::SetStopStage(child, StopStage::Draining))
    );
    let late = core.adopt(GROUP, millis(5));
    assert!(
        core.on(SupervisorEvent::Time, millis(5))
            .contains(&SupervisorEffect::SetStopStage(late, StopStage::Draining)),
        "no child stays"
    );
    assert!(
        core.on(SupervisorEvent::Exited(late, ChildExit::Failure), millis(6))
            .is_empty()
    );
}

#[test]
fn cancels_and_replaces_a_broken_child() {
    let (mut core, children) = up(policy(1));
    let effects = core.on(SupervisorEvent::Broken(children[0]), millis(1));
    let ending =
        SupervisorEffect::Notify(SupervisorNotice::Stopping(children[0], StopReason::Broken));
    assert_eq!(
        effects,
        [
            ending,
            SupervisorEffect::SetStopStage(children[0], StopStage::Terminating)
        ]
    );
    assert!(
        core.on(SupervisorEvent::Broken(children[0]), millis(2))
            .is_empty()
    );
    assert_eq!(
        core.on(SupervisorEvent::Time, millis(2001)),
        [SupervisorEffect::SetStopStage(
            children[0],
            StopStage::Killing
        )]
    );
    assert_eq!(
        started(&core.on(
            SupervisorEvent::Exited(children[0], ChildExit::Success),
            millis(2002)
        ))
        .len(),
        1
    );
}

#[test]
fn stop_does_not_hurry_a_broken_child_further() {
    let (mut core, children) = up(policy(2));
    core.on(SupervisorEvent::Broken(children[0]), millis(1));
    let told = |effects: Vec<SupervisorEffect>| {
        let tells = effects
            .into_iter()
            .filter(|effect| matches!(effect, SupervisorEffect::SetStopStage(..)));
        tells.collect::<Vec<_>>()
    };
    let [broken, other] = [0, 1].map(|number| {
        move |children: &[ChildId], stage| SupervisorEffect::SetStopStage(children[number], stage)
    });
    assert_eq!(
        told(core.on(SupervisorEvent::Stop, millis(2))),
        [other(&children, StopStage::Draining)]
    );
    assert_eq!(
        told(core.on(SupervisorEvent::Stop, millis(3))),
        [other(&children, StopStage::Terminating)],
        "it has its grace"
    );
    let both = [
        broken(&children, StopStage::Killing),
        other(&children, StopStage::Killing),
    ];
    assert_eq!(told(core.on(SupervisorEvent::Stop, millis(4))), both);
}

#[test]
fn stop_policy_can_change_before_the_stop() {
    for (stop, first, wake) in [
        (
            StopPolicy::cancel(millis(10)),
            StopStage::Terminating,
            Some(millis(110)),
        ),
        (StopPolicy::drain(millis(10)), StopStage::Draining, None),
        (
            StopPolicy {
                drain: Some(millis(5)),
                grace: millis(10),
            },
            StopStage::Draining,
            Some(millis(105)),
        ),
    ] {
        let (mut core, children) = up(policy(1));
        core.note(SupervisorEvent::SetStopPolicy(GROUP, stop), millis(100));
        assert!(
            core.on(SupervisorEvent::Stop, millis(100))
                .contains(&SupervisorEffect::SetStopStage(children[0], first)),
            "{stop:?}"
        );
        assert_eq!(
            (core.stage(GROUP), core.wake_at(millis(100))),
            (first, wake)
        );
    }
}

#[test]
fn empty_groups_pass_through_the_stop_stages() {
    let mut core = Supervisor::new([GroupPolicy {
        stop: StopPolicy::drain(millis(10)),
        ..on_demand(1)
    }]);
    core.on(SupervisorEvent::Stop, millis(0));
    assert!(
        core.is_over()
            && core.stage(GROUP) == StopStage::Draining
            && core.wake_at(millis(0)).is_none()
    );
    core.on(SupervisorEvent::Stop, millis(1));
    assert_eq!(
        (core.stage(GROUP), core.wake_at(millis(1))),
        (StopStage::Terminating, Some(millis(11)))
    );
    core.on(SupervisorEvent::Time, millis(11));
    assert_eq!(
        (core.stage(GROUP), core.wake_at(millis(11))),
        (StopStage::Killing, None)
    );
}
