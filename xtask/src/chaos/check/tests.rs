//! Each fault is planted in evidence that is otherwise without any, and has to be found.

use super::*;
use crate::{plan::Trouble, procs::Survivor};

const SECOND: u64 = 1_000_000_000;
/// The time of day when the side file's clock began.
const OFFSET: u64 = 1_794_000_000 * SECOND;
const RUNNER: u32 = 50;

fn tid(n: u64) -> Tid {
    Tid::from_u64(1_794_785_197_000_000_000 + n).unwrap()
}

fn line(n: u64, attempt: u32, what: Mark, at: u64) -> Line {
    Line {
        tid: tid(n),
        attempt,
        class: Class::Nap,
        what,
        pid: 100 + attempt,
        ppid: RUNNER,
        at,
    }
}

fn event(n: u64, event: TaskEventKind, attempt: u32, at: u64) -> TaskEvent {
    let nanos = i128::from(OFFSET + at);
    let json = serde_json::json!({
        "id": tid(n), "tid": tid(n), "event": event, "attempt": attempt, "at": "2026-01-01T00:00:00Z",
    });
    let mut made: TaskEvent = serde_json::from_value(json).unwrap();
    let since = Duration::from_nanos(u64::try_from(nanos - made.at.as_nanosecond()).unwrap());
    made.at += since;
    made
}

/// Three tasks that one submitter was told of and that ran without a fault; the third on the second attempt, after its worker was killed.
fn good() -> Evidence {
    let mut evidence = Evidence {
        clock_offset: OFFSET,
        ..Evidence::default()
    };
    for n in 1..=2 {
        evidence.lines.extend([
            line(n, 1, Mark::Begin, 10 * SECOND),
            line(n, 1, Mark::End, 11 * SECOND),
        ]);
        evidence.events.extend([
            event(n, TaskEventKind::Created, 0, 9 * SECOND),
            event(n, TaskEventKind::Spawning, 1, 9 * SECOND),
            event(n, TaskEventKind::Running, 1, 10 * SECOND),
            event(n, TaskEventKind::Completed, 1, 11 * SECOND),
        ]);
    }
    let (before, after) = (10 * SECOND, 14 * SECOND);
    evidence.lines.extend([
        line(3, 1, Mark::Begin, before),
        line(3, 1, Mark::Tick, before + 5),
        line(3, 2, Mark::Begin, after),
        line(3, 2, Mark::End, after + SECOND),
    ]);
    evidence.events.extend([
        event(3, TaskEventKind::Created, 0, 9 * SECOND),
        event(3, TaskEventKind::Spawning, 1, 9 * SECOND),
        event(3, TaskEventKind::Running, 1, before),
        event(3, TaskEventKind::Reclaimed, 1, before + 3 * SECOND),
        event(3, TaskEventKind::Spawning, 2, after),
        event(3, TaskEventKind::StaleWrite, 1, after),
        event(3, TaskEventKind::Completed, 2, after + SECOND),
        event(3, TaskEventKind::StaleWrite, 1, after + 2 * SECOND),
    ]);
    let accepted = (1..=3).map(tid).collect();
    evidence.batches.push(Submitted {
        planned: 3,
        is_whole: true,
        accepted,
        ..Submitted::default()
    });
    evidence.census = Census {
        completed: 3,
        stale_writes: 2,
        ..Census::default()
    };
    let kill = before + 10;
    evidence
        .deeds
        .push(deed(What::KillWorker, kill, &[RUNNER + 1, RUNNER]));
    evidence
        .lines
        .iter_mut()
        .filter(|line| line.tid != tid(3))
        .for_each(|line| line.ppid = 90);
    evidence
        .lines
        .iter_mut()
        .filter(|line| line.attempt == 2)
        .for_each(|line| line.ppid = 91);
    evidence
}

fn deed(what: What, at: u64, runners: &[u32]) -> Deed {
    Deed {
        what,
        at,
        wall: OFFSET + at,
        worker: 40,
        runners: runners.to_vec(),
    }
}

/// The faults that are found when `plant` has changed what is good.
fn faults(plant: impl FnOnce(&mut Evidence)) -> Vec<Fault> {
    let mut evidence = good();
    plant(&mut evidence);
    check(&evidence).faults
}

#[test]
fn what_is_good_has_no_fault_and_is_counted() {
    let verdict = check(&good());
    assert_eq!(verdict.faults, []);
    let figures = verdict.figures;
    assert_eq!(
        (figures.accepted, figures.unannounced, figures.completed),
        (3, 0, 3)
    );
    assert_eq!(
        (figures.attempts, figures.ran_again, figures.ended_again),
        (4, 1, 0)
    );
    assert_eq!(figures.stale_refused, 2);
    assert_eq!(figures.taken_back, [Duration::from_nanos(3 * SECOND - 10)]);
    assert_eq!(
        figures.running_again,
        [Duration::from_nanos(4 * SECOND - 10)]
    );
    assert_eq!(figures.taken_from_the_unhurt, []);
}

#[test]
fn a_task_that_the_server_has_forgotten_is_lost_only_outside_of_that_moment() {
    let forget = |evidence: &mut Evidence, moment: Range<u64>| {
        evidence.events.retain(|event| event.tid != tid(2));
        evidence.census.completed = 2;
        evidence.forgotten.push(moment);
    };
    let mut evidence = good();
    forget(&mut evidence, tid(2).as_u64()..tid(3).as_u64());
    // The claim of the first was forgotten too, and given out again under its number.
    evidence.lines.push(line(1, 1, Mark::Begin, 12 * SECOND));
    let verdict = check(&evidence);
    assert_eq!(verdict.faults, []);
    assert_eq!(
        (verdict.figures.forgotten, verdict.figures.overlaps),
        (1, 1)
    );
    let found = faults(|evidence| forget(evidence, tid(3).as_u64()..tid(4).as_u64()));
    assert!(found.contains(&Fault::NotStored(tid(2))), "{found:?}");
}

#[test]
fn what_could_not_be_taken_back_for_an_outage_is_counted_apart() {
    let mut evidence = good();
    let kill = evidence.deeds[0].at;
    evidence.deeds.push(deed(
        What::KillServer(Duration::from_secs(1)),
        kill + SECOND,
        &[],
    ));
    let figures = check(&evidence).figures;
    assert_eq!(
        (
            figures.taken_back.len(),
            figures.taken_back_after_outage.len()
        ),
        (0, 1)
    );
    // One that was over before is no excuse.
    evidence.deeds[1].at = kill - 2 * SECOND;
    let figures = check(&evidence).figures;
    assert_eq!(
        (
            figures.taken_back.len(),
            figures.taken_back_after_outage.len()
        ),
        (1, 0)
    );
}

#[test]
fn what_is_taken_from_a_worker_that_nothing_was_done_to_is_counted() {
    let mut evidence = good();
    evidence.deeds.clear();
    let verdict = check(&evidence);
    assert_eq!(
        (
            verdict.faults.len(),
            verdict.figures.taken_from_the_unhurt.len()
        ),
        (0, 1)
    );
    assert_eq!(verdict.figures.taken_from_the_cut_off, 0);
}

#[test]
fn what_is_taken_from_a_worker_that_was_cut_off_is_counted_apart() {
    let mut evidence = good();
    let kill = evidence.deeds[0].at;
    evidence.deeds = vec![deed(
        What::Net(Trouble::HalfOpen, Duration::from_secs(2)),
        kill,
        &[],
    )];
    let figures = check(&evidence).figures;
    assert_eq!(
        (
            figures.taken_from_the_cut_off,
            figures.taken_from_the_unhurt.len()
        ),
        (1, 0)
    );
    // One after which the lease could be renewed is no excuse.
    evidence.deeds[0].at = kill - 4 * SECOND;
    let figures = check(&evidence).figures;
    assert_eq!(
        (
            figures.taken_from_the_cut_off,
            figures.taken_from_the_unhurt.len()
        ),
        (0, 1)
    );
}

/// Its result was still on the way when the worker was killed too.
#[test]
fn what_a_killed_runner_had_is_taken_from_a_worker_that_was_killed() {
    let mut evidence = good();
    let at = evidence.deeds[0].at;
    evidence.deeds = vec![
        deed(What::KillRunner, at, &[RUNNER]),
        deed(What::KillWorker, at + 1, &[]),
    ];
    assert_eq!(check(&evidence).figures.taken_from_the_unhurt, []);
    evidence.deeds.pop();
    assert_eq!(check(&evidence).figures.taken_from_the_unhurt.len(), 1);
}

#[test]
fn a_task_that_the_broker_does_not_know_is_lost() {
    let found = faults(|evidence| {
        evidence.lines.retain(|line| line.tid != tid(2));
        evidence.events.retain(|event| event.tid != tid(2));
        evidence.census.completed -= 1;
    });
    assert_eq!(found[0], Fault::NotStored(tid(2)));
    assert!(found[0].is_loss());
    assert!(matches!(found[1..], [Fault::Miscounted(_)]), "{found:?}");
}

#[test]
fn a_task_that_ran_and_that_nobody_knows_is_lost() {
    let found = faults(|evidence| evidence.lines.push(line(9, 1, Mark::Begin, SECOND)));
    assert_eq!(found[0], Fault::NotStored(tid(9)));
}

#[test]
fn a_task_that_does_not_come_to_its_end_is_lost() {
    let found = faults(|evidence| {
        evidence
            .events
            .retain(|event| event.tid != tid(1) || event.event != TaskEventKind::Completed);
        (evidence.census.completed, evidence.census.unfinished) = (2, 1);
    });
    assert_eq!(found, [Fault::NotFinished(tid(1))]);
    assert!(found[0].is_loss());
}

#[test]
fn a_success_of_an_attempt_that_never_ended_is_a_loss() {
    let found = faults(|evidence| {
        evidence
            .lines
            .retain(|line| line.tid != tid(1) || line.what != Mark::End)
    });
    assert_eq!(found, [Fault::NeverRan(tid(1), 1)]);
    assert!(found[0].is_loss());
}

#[test]
fn a_second_success_is_found() {
    let found = faults(|evidence| {
        evidence
            .events
            .push(event(1, TaskEventKind::Completed, 1, 12 * SECOND))
    });
    assert_eq!(found, [Fault::SecondEnd(tid(1))]);
}

#[test]
fn an_attempt_after_the_end_is_found() {
    let found = faults(|evidence| {
        evidence
            .events
            .push(event(1, TaskEventKind::Spawning, 2, 12 * SECOND))
    });
    assert_eq!(found, [Fault::SecondEnd(tid(1))]);
}

#[test]
fn a_stale_write_that_was_accepted_is_found() {
    let found = faults(|evidence| {
        let last = evidence
            .events
            .iter_mut()
            .rfind(|event| event.event == TaskEventKind::Completed)
            .unwrap();
        last.attempt = 1;
        // Also in the side file, so that the log alone gives it away.
        evidence.lines.push(line(3, 1, Mark::End, 10 * SECOND + 6));
    });
    assert_eq!(
        found,
        [Fault::StaleWrite(tid(3), TaskEventKind::Completed, 1)]
    );
}

#[test]
fn an_attempt_number_that_is_given_again_is_found() {
    let found = faults(|evidence| {
        let again = evidence
            .events
            .iter_mut()
            .rfind(|event| event.event == TaskEventKind::Spawning)
            .unwrap();
        again.attempt = 1;
    });
    assert!(
        found.contains(&Fault::StaleWrite(tid(3), TaskEventKind::Spawning, 1)),
        "{found:?}"
    );
}

#[test]
fn two_attempts_at_once_are_found() {
    let found = faults(|evidence| evidence.lines.push(line(3, 1, Mark::Tick, 14 * SECOND + 7)));
    assert_eq!(
        found,
        [Fault::Overlap(tid(3), 1, 2, Duration::from_nanos(7))]
    );
}

#[test]
fn what_an_attempt_left_behind_counts_as_the_attempt() {
    let found = faults(|evidence| evidence.lines.push(line(3, 1, Mark::Kin, 14 * SECOND + 7)));
    assert_eq!(
        found,
        [Fault::Overlap(tid(3), 1, 2, Duration::from_nanos(7))]
    );
}

#[test]
fn an_overlap_is_found_behind_an_attempt_in_between() {
    let found = faults(|evidence| {
        evidence.lines.push(line(3, 1, Mark::Tick, 20 * SECOND));
        evidence.lines.push(line(3, 3, Mark::Begin, 19 * SECOND));
    });
    let expected = [
        Fault::Overlap(tid(3), 1, 2, Duration::from_secs(6)),
        Fault::Overlap(tid(3), 1, 3, Duration::from_secs(1)),
    ];
    assert_eq!(found, expected);
}

#[test]
fn one_attempt_that_began_twice_is_found() {
    let found = faults(|evidence| {
        evidence
            .lines
            .push(line(1, 1, Mark::Begin, 10 * SECOND + 1))
    });
    assert_eq!(found, [Fault::BegunTwice(tid(1), 1)]);
}

#[test]
fn survivors_are_found() {
    let survivor = Survivor {
        pid: 7,
        what: "sleep".into(),
    };
    assert_eq!(
        faults(|evidence| evidence.survivors.push(survivor.clone())),
        [Fault::Survivor(survivor.clone())]
    );
    let late = 11 * SECOND + CLOCK_SLACK + 3;
    let found = faults(|evidence| evidence.lines.push(line(1, 1, Mark::Kin, late)));
    assert_eq!(found, [Fault::Outlived(tid(1), Duration::from_nanos(3))]);
    assert_eq!(
        faults(|evidence| evidence.lines.push(line(1, 1, Mark::Kin, 11 * SECOND))),
        []
    );
}

#[test]
fn a_task_that_ends_in_another_way_than_it_should_is_found() {
    let found = faults(|evidence| {
        evidence
            .events
            .iter_mut()
            .find(|event| event.event == TaskEventKind::Completed)
            .unwrap()
            .event = TaskEventKind::Failed;
        (evidence.census.completed, evidence.census.failed) = (2, 1);
    });
    assert_eq!(found, [Fault::WrongEnd(tid(1), TaskEventKind::Failed)]);
    let found = faults(|evidence| {
        evidence
            .lines
            .iter_mut()
            .filter(|line| line.tid == tid(2))
            .for_each(|line| line.class = Class::Broken);
    });
    assert_eq!(found, [Fault::WrongEnd(tid(2), TaskEventKind::Completed)]);
}

/// The third task, which ran twice, has chained the second.
fn chained(attempt: u32) -> impl Fn(&mut Evidence) {
    move |evidence| {
        evidence
            .lines
            .iter_mut()
            .filter(|line| line.tid == tid(3))
            .for_each(|line| line.class = Class::Chains);
        evidence.batches[0]
            .accepted
            .retain(|accepted| *accepted != tid(2));
        evidence.batches[0].planned = 2;
        evidence.follow_ups.push(FollowUp {
            tid: tid(2),
            parent: tid(3),
            attempt,
        });
    }
}

#[test]
fn a_task_is_followed_once_by_what_its_last_attempt_has_chained() {
    let mut evidence = good();
    chained(2)(&mut evidence);
    let verdict = check(&evidence);
    assert_eq!(
        (
            verdict.faults,
            verdict.figures.followed,
            verdict.figures.unannounced
        ),
        (vec![], 1, 0)
    );
    assert_eq!(
        faults(chained(1)),
        [Fault::Misfollowed(tid(3), Some(2), vec![1])]
    );
    let found = faults(|evidence| {
        chained(2)(evidence);
        let twice = FollowUp {
            tid: tid(1),
            ..evidence.follow_ups[0]
        };
        evidence.batches[0]
            .accepted
            .retain(|accepted| *accepted != tid(1));
        evidence.batches[0].planned = 1;
        evidence.follow_ups.push(twice);
    });
    assert_eq!(found, [Fault::Misfollowed(tid(3), Some(2), vec![2, 2])]);
}

#[test]
fn a_follow_up_that_is_missing_is_a_loss() {
    let found = faults(|evidence| {
        evidence
            .lines
            .iter_mut()
            .filter(|line| line.tid == tid(3))
            .for_each(|line| line.class = Class::Chains);
    });
    assert_eq!(found, [Fault::Unfollowed(tid(3))]);
    assert!(found[0].is_loss());
}

#[test]
fn nothing_follows_what_has_not_succeeded() {
    let found = faults(|evidence| {
        chained(2)(evidence);
        let end =
            |event: &&mut TaskEvent| event.tid == tid(3) && event.event == TaskEventKind::Completed;
        evidence.events.iter_mut().find(end).unwrap().event = TaskEventKind::Killed;
        (evidence.census.completed, evidence.census.killed) = (2, 1);
        evidence
            .deeds
            .push(deed(What::KillRunner, 10 * SECOND, &[90]));
    });
    assert_eq!(found, [Fault::Misfollowed(tid(3), None, vec![2])]);
    let found = faults(|evidence| {
        chained(2)(evidence);
        evidence.follow_ups[0].parent = tid(77);
    });
    assert_eq!(
        found,
        [
            Fault::Unfollowed(tid(3)),
            Fault::Misfollowed(tid(77), None, vec![2])
        ]
    );
}

#[test]
fn a_killed_task_needs_a_killed_runner() {
    let kill = |evidence: &mut Evidence| {
        evidence
            .events
            .iter_mut()
            .find(|event| event.event == TaskEventKind::Completed)
            .unwrap()
            .event = TaskEventKind::Killed;
        (evidence.census.completed, evidence.census.killed) = (2, 1);
    };
    assert!(matches!(faults(kill)[..], [Fault::Process(_)]));
    let found = faults(|evidence| {
        kill(evidence);
        evidence
            .deeds
            .push(deed(What::KillRunner, 10 * SECOND, &[90]));
    });
    assert_eq!(found, []);
}

#[test]
fn a_submit_is_stored_whole_or_in_groups() {
    let batch = |stored: u64, planned: usize| Submitted {
        index: 4,
        planned,
        stored: (0..stored).map(tid).collect(),
        ..Submitted::default()
    };
    for (stored, planned) in [(0, 5), (5, 5), (1000, 2500), (2000, 2500), (2500, 2500)] {
        assert_eq!(torn(&batch(stored, planned)), None, "{stored} of {planned}");
    }
    for (stored, planned) in [(4, 5), (6, 5), (999, 2500), (2400, 2500), (3000, 2500)] {
        let fault = Fault::Torn {
            batch: 4,
            planned,
            stored: stored as usize,
        };
        assert_eq!(
            torn(&batch(stored, planned)),
            Some(fault),
            "{stored} of {planned}"
        );
    }
    let short = Submitted {
        planned: 3,
        is_whole: true,
        accepted: vec![tid(1), tid(2)],
        ..Submitted::default()
    };
    assert!(torn(&short).is_some());
    // A run prints no id: what counts is that the broker has its one task.
    let run = |stored: &[Tid]| Submitted {
        planned: 1,
        is_whole: true,
        is_run: true,
        stored: stored.to_vec(),
        ..batch(0, 1)
    };
    assert_eq!(torn(&run(&[tid(1)])), None);
    assert!(torn(&run(&[])).is_some() && torn(&run(&[tid(1), tid(2)])).is_some());
}

#[test]
fn tasks_that_nobody_submitted_are_found() {
    assert!(matches!(
        faults(|evidence| evidence.census.unfinished += 1)[..],
        [Fault::Miscounted(_)]
    ));
}

#[test]
fn what_else_was_seen_is_a_fault() {
    assert_eq!(
        faults(|evidence| evidence.garbled.push(tid(1))),
        [Fault::Garbled(tid(1))]
    );
    assert_eq!(
        faults(|evidence| evidence.remarks.push("x".into())),
        [Fault::Process("x".into())]
    );
}

/// Messages 901 and 902 were accepted, and are tasks 1 and 2.
fn with_letters(evidence: &mut Evidence) {
    let letter = |n| Letter {
        tid: tid(n),
        message: tid(900 + n),
    };
    evidence.letters = vec![letter(1), letter(2)];
    evidence.batches[0].accepted.retain(|one| *one == tid(3));
    evidence.batches[0].planned = 1;
    let accepted = vec![tid(901), tid(902)];
    let letters = Submitted {
        planned: 2,
        is_whole: true,
        is_letters: true,
        accepted,
        ..Submitted::default()
    };
    evidence.batches.push(letters);
}

#[test]
fn a_message_is_one_task() {
    let mut evidence = good();
    with_letters(&mut evidence);
    let verdict = check(&evidence);
    assert_eq!(
        (
            verdict.faults,
            verdict.figures.letters,
            verdict.figures.unannounced
        ),
        (vec![], 2, 0)
    );
    let lost = faults(|evidence| {
        with_letters(evidence);
        evidence.batches[1].accepted.push(tid(903));
        evidence.batches[1].planned += 1;
    });
    assert_eq!(lost, [Fault::Unread(tid(903))]);
    let twice = faults(|evidence| {
        with_letters(evidence);
        evidence.letters[1].message = tid(901);
        evidence.batches[1].accepted.pop();
        evidence.batches[1].planned -= 1;
    });
    assert_eq!(twice, [Fault::ReadTwice(tid(901), 2)]);
}

#[test]
fn a_due_time_is_fired_once_and_none_is_left_out() {
    let fired = |dues: [u64; 2]| {
        faults(|evidence| {
            evidence.ticks = vec![
                Tick {
                    tid: tid(1),
                    due: dues[0],
                },
                Tick {
                    tid: tid(2),
                    due: dues[1],
                },
            ];
        })
    };
    let every = EVERY.as_nanos() as u64;
    assert_eq!(fired([7, 7 + every]), []);
    assert_eq!(fired([7, 7]), [Fault::FiredTwice(7)]);
    assert_eq!(fired([7, 7 + 3 * every]), [Fault::NotFired(7, 3 * EVERY)]);
}

#[test]
fn a_chore_is_given_up_when_it_was_lost_too_often_and_not_before() {
    let plant = |losses: u32, is_chore: bool| {
        faults(|evidence| {
            evidence.events.retain(|event| event.tid != tid(1));
            evidence.lines.retain(|line| line.tid != tid(1));
            evidence
                .events
                .push(event(1, TaskEventKind::Created, 0, 9 * SECOND));
            for attempt in 1..=losses {
                evidence
                    .events
                    .push(event(1, TaskEventKind::Spawning, attempt, 9 * SECOND));
                evidence
                    .events
                    .push(event(1, TaskEventKind::Reclaimed, attempt, 10 * SECOND));
            }
            evidence
                .events
                .push(event(1, TaskEventKind::Spawning, losses + 1, 11 * SECOND));
            evidence
                .events
                .push(event(1, TaskEventKind::Failed, losses + 1, 12 * SECOND));
            evidence.chores.extend(is_chore.then_some(tid(1)));
            (evidence.census.completed, evidence.census.failed) = (2, 1);
        })
    };
    assert_eq!(plant(2, true), []);
    assert_eq!(
        plant(1, true),
        [Fault::WrongEnd(tid(1), TaskEventKind::Failed)]
    );
    assert_eq!(
        plant(2, false),
        [Fault::WrongEnd(tid(1), TaskEventKind::Failed)]
    );
}
