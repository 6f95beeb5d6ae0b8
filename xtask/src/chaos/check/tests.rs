//! Each test plants one violation in evidence without any, and expects `check` to find it.

use super::*;
use crate::{plan::NetworkFault, processes::Survivor};

const SECOND: u64 = 1_000_000_000;
/// The time of day at zero of the side file's clock.
const OFFSET: u64 = 1_794_000_000 * SECOND;
const RUNNER: u32 = 50;

fn tid(n: u64) -> Tid {
    Tid::from_u64(1_794_785_197_000_000_000 + n).unwrap()
}

fn line(n: u64, attempt: u32, mark: Mark, at: u64) -> Line {
    Line {
        tid: tid(n),
        attempt,
        class: Class::Short,
        mark,
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
    let mut parse_tasks: TaskEvent = serde_json::from_value(json).unwrap();
    let since =
        Duration::from_nanos(u64::try_from(nanos - parse_tasks.at.as_nanosecond()).unwrap());
    parse_tasks.at += since;
    parse_tasks
}

/// Evidence without a violation: three tasks of one submitter; the third succeeds in its second
/// attempt, after its worker was killed.
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
        line(3, 1, Mark::TriggerTask, before + 5),
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
        succeeded: true,
        accepted,
        ..Submitted::default()
    });
    evidence.task_counts = TaskCounts {
        completed: 3,
        stale_writes: 2,
        ..TaskCounts::default()
    };
    let kill = before + 10;
    evidence
        .injected_faults
        .push(injected(FaultKind::KillWorker, kill, &[RUNNER + 1, RUNNER]));
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

fn injected(kind: FaultKind, at: u64, runners: &[u32]) -> InjectedFault {
    InjectedFault {
        kind,
        at,
        wall: OFFSET + at,
        worker: 40,
        runners: runners.to_vec(),
    }
}

/// The violations that `check` finds after `plant` changed the evidence.
fn violations(plant: impl FnOnce(&mut Evidence)) -> Vec<Violation> {
    let mut evidence = good();
    plant(&mut evidence);
    check(&evidence).violations
}

#[test]
fn evidence_without_violations_is_counted() {
    let verdict = check(&good());
    assert_eq!(verdict.violations, []);
    let figures = verdict.figures;
    assert_eq!(
        (figures.accepted, figures.unacknowledged, figures.completed),
        (3, 0, 3)
    );
    assert_eq!(
        (figures.attempts, figures.reran, figures.completed_twice),
        (4, 1, 0)
    );
    assert_eq!(figures.stale_refused, 2);
    assert_eq!(
        figures.reclaim_times,
        [Duration::from_nanos(3 * SECOND - 10)]
    );
    assert_eq!(figures.rerun_times, [Duration::from_nanos(4 * SECOND - 10)]);
    assert_eq!(figures.reclaimed_from_healthy, []);
}

#[test]
fn forgotten_tasks_are_lost_unless_the_server_lost_those_writes() {
    let forget = |evidence: &mut Evidence, moment: Range<u64>| {
        evidence.events.retain(|event| event.tid != tid(2));
        evidence.task_counts.completed = 2;
        evidence.forgotten.push(moment);
    };
    let mut evidence = good();
    forget(&mut evidence, tid(2).as_u64()..tid(3).as_u64());
    // The claim of the first task was lost too, and its attempt number was used again.
    evidence.lines.push(line(1, 1, Mark::Begin, 12 * SECOND));
    let verdict = check(&evidence);
    assert_eq!(verdict.violations, []);
    assert_eq!(
        (verdict.figures.forgotten, verdict.figures.overlaps),
        (1, 1)
    );
    let found = violations(|evidence| forget(evidence, tid(3).as_u64()..tid(4).as_u64()));
    assert!(found.contains(&Violation::NotStored(tid(2))), "{found:?}");
}

#[test]
fn reclaims_during_an_outage_are_counted_apart() {
    let mut evidence = good();
    let kill = evidence.injected_faults[0].at;
    evidence.injected_faults.push(injected(
        FaultKind::KillServer(Duration::from_secs(1)),
        kill + SECOND,
        &[],
    ));
    let figures = check(&evidence).figures;
    assert_eq!(
        (
            figures.reclaim_times.len(),
            figures.reclaim_times_with_outage.len()
        ),
        (0, 1)
    );
    // An outage that ended before the kill does not count.
    evidence.injected_faults[1].at = kill - 2 * SECOND;
    let figures = check(&evidence).figures;
    assert_eq!(
        (
            figures.reclaim_times.len(),
            figures.reclaim_times_with_outage.len()
        ),
        (1, 0)
    );
}

#[test]
fn counts_reclaims_from_workers_without_a_fault() {
    let mut evidence = good();
    evidence.injected_faults.clear();
    let verdict = check(&evidence);
    assert_eq!(
        (
            verdict.violations.len(),
            verdict.figures.reclaimed_from_healthy.len()
        ),
        (0, 1)
    );
    assert_eq!(verdict.figures.reclaimed_when_disconnected, 0);
}

#[test]
fn counts_reclaims_from_disconnected_workers_apart() {
    let mut evidence = good();
    let kill = evidence.injected_faults[0].at;
    evidence.injected_faults = vec![injected(
        FaultKind::Net(NetworkFault::HalfOpen, Duration::from_secs(2)),
        kill,
        &[],
    )];
    let figures = check(&evidence).figures;
    assert_eq!(
        (
            figures.reclaimed_when_disconnected,
            figures.reclaimed_from_healthy.len()
        ),
        (1, 0)
    );
    // An outage after which the lease could be renewed does not count.
    evidence.injected_faults[0].at = kill - 4 * SECOND;
    let figures = check(&evidence).figures;
    assert_eq!(
        (
            figures.reclaimed_when_disconnected,
            figures.reclaimed_from_healthy.len()
        ),
        (0, 1)
    );
}

/// The result of the killed runner was still on its way when the worker was killed.
#[test]
fn a_reclaim_after_kills_of_runner_and_worker_is_explained() {
    let mut evidence = good();
    let at = evidence.injected_faults[0].at;
    evidence.injected_faults = vec![
        injected(FaultKind::KillRunner, at, &[RUNNER]),
        injected(FaultKind::KillWorker, at + 1, &[]),
    ];
    assert_eq!(check(&evidence).figures.reclaimed_from_healthy, []);
    evidence.injected_faults.pop();
    assert_eq!(check(&evidence).figures.reclaimed_from_healthy.len(), 1);
}

#[test]
fn an_accepted_task_that_the_broker_does_not_know_is_lost() {
    let found = violations(|evidence| {
        evidence.lines.retain(|line| line.tid != tid(2));
        evidence.events.retain(|event| event.tid != tid(2));
        evidence.task_counts.completed -= 1;
    });
    assert_eq!(found[0], Violation::NotStored(tid(2)));
    assert!(found[0].is_loss());
    assert!(
        matches!(found[1..], [Violation::CountMismatch(_)]),
        "{found:?}"
    );
}

#[test]
fn a_task_that_ran_and_that_the_broker_does_not_know_is_lost() {
    let found = violations(|evidence| evidence.lines.push(line(9, 1, Mark::Begin, SECOND)));
    assert_eq!(found[0], Violation::NotStored(tid(9)));
}

#[test]
fn a_task_without_a_final_state_is_lost() {
    let found = violations(|evidence| {
        evidence
            .events
            .retain(|event| event.tid != tid(1) || event.event != TaskEventKind::Completed);
        (
            evidence.task_counts.completed,
            evidence.task_counts.unfinished,
        ) = (2, 1);
    });
    assert_eq!(found, [Violation::NotFinished(tid(1))]);
    assert!(found[0].is_loss());
}

#[test]
fn a_completed_task_whose_attempt_never_ended_is_lost() {
    let found = violations(|evidence| {
        evidence
            .lines
            .retain(|line| line.tid != tid(1) || line.mark != Mark::End)
    });
    assert_eq!(found, [Violation::NeverRan(tid(1), 1)]);
    assert!(found[0].is_loss());
}

#[test]
fn finds_a_second_success() {
    let found = violations(|evidence| {
        evidence
            .events
            .push(event(1, TaskEventKind::Completed, 1, 12 * SECOND))
    });
    assert_eq!(found, [Violation::EventAfterEnd(tid(1))]);
}

#[test]
fn finds_an_attempt_after_the_final_state() {
    let found = violations(|evidence| {
        evidence
            .events
            .push(event(1, TaskEventKind::Spawning, 2, 12 * SECOND))
    });
    assert_eq!(found, [Violation::EventAfterEnd(tid(1))]);
}

#[test]
fn finds_an_accepted_stale_write() {
    let found = violations(|evidence| {
        let last = evidence
            .events
            .iter_mut()
            .rfind(|event| event.event == TaskEventKind::Completed)
            .unwrap();
        last.attempt = 1;
        // Also in the side file, so that only the log shows it.
        evidence.lines.push(line(3, 1, Mark::End, 10 * SECOND + 6));
    });
    assert_eq!(
        found,
        [Violation::StaleWrite(tid(3), TaskEventKind::Completed, 1)]
    );
}

#[test]
fn finds_an_attempt_number_that_is_used_again() {
    let found = violations(|evidence| {
        let again = evidence
            .events
            .iter_mut()
            .rfind(|event| event.event == TaskEventKind::Spawning)
            .unwrap();
        again.attempt = 1;
    });
    assert!(
        found.contains(&Violation::StaleWrite(tid(3), TaskEventKind::Spawning, 1)),
        "{found:?}"
    );
}

#[test]
fn finds_overlapping_attempts() {
    let found = violations(|evidence| {
        evidence
            .lines
            .push(line(3, 1, Mark::TriggerTask, 14 * SECOND + 7))
    });
    assert_eq!(
        found,
        [Violation::Overlap(tid(3), 1, 2, Duration::from_nanos(7))]
    );
}

#[test]
fn a_process_left_by_an_attempt_counts_as_the_attempt() {
    let found = violations(|evidence| {
        evidence
            .lines
            .push(line(3, 1, Mark::Orphan, 14 * SECOND + 7))
    });
    assert_eq!(
        found,
        [Violation::Overlap(tid(3), 1, 2, Duration::from_nanos(7))]
    );
}

#[test]
fn finds_an_overlap_across_an_attempt_in_between() {
    let found = violations(|evidence| {
        evidence
            .lines
            .push(line(3, 1, Mark::TriggerTask, 20 * SECOND));
        evidence.lines.push(line(3, 3, Mark::Begin, 19 * SECOND));
    });
    let expected = [
        Violation::Overlap(tid(3), 1, 2, Duration::from_secs(6)),
        Violation::Overlap(tid(3), 1, 3, Duration::from_secs(1)),
    ];
    assert_eq!(found, expected);
}

#[test]
fn finds_an_attempt_that_began_twice() {
    let found = violations(|evidence| {
        evidence
            .lines
            .push(line(1, 1, Mark::Begin, 10 * SECOND + 1))
    });
    assert_eq!(found, [Violation::BegunTwice(tid(1), 1)]);
}

#[test]
fn finds_processes_that_are_left() {
    let survivor = Survivor {
        pid: 7,
        description: "sleep".into(),
    };
    assert_eq!(
        violations(|evidence| evidence.survivors.push(survivor.clone())),
        [Violation::Survivor(survivor.clone())]
    );
    let late = 11 * SECOND + CLOCK_SLACK + 3;
    let found = violations(|evidence| evidence.lines.push(line(1, 1, Mark::Orphan, late)));
    assert_eq!(
        found,
        [Violation::OrphanAfterEnd(tid(1), Duration::from_nanos(3))]
    );
    assert_eq!(
        violations(|evidence| evidence.lines.push(line(1, 1, Mark::Orphan, 11 * SECOND))),
        []
    );
}

#[test]
fn finds_wrong_final_states() {
    let found = violations(|evidence| {
        evidence
            .events
            .iter_mut()
            .find(|event| event.event == TaskEventKind::Completed)
            .unwrap()
            .event = TaskEventKind::Failed;
        (evidence.task_counts.completed, evidence.task_counts.failed) = (2, 1);
    });
    assert_eq!(found, [Violation::WrongEnd(tid(1), TaskEventKind::Failed)]);
    let found = violations(|evidence| {
        evidence
            .lines
            .iter_mut()
            .filter(|line| line.tid == tid(2))
            .for_each(|line| line.class = Class::AlwaysFails);
    });
    assert_eq!(
        found,
        [Violation::WrongEnd(tid(2), TaskEventKind::Completed)]
    );
}

/// Makes the second task a chained task of the third, which ran twice.
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
fn a_task_has_one_chained_task_of_its_last_attempt() {
    let mut evidence = good();
    chained(2)(&mut evidence);
    let verdict = check(&evidence);
    assert_eq!(
        (
            verdict.violations,
            verdict.figures.followed,
            verdict.figures.unacknowledged
        ),
        (vec![], 1, 0)
    );
    assert_eq!(
        violations(chained(1)),
        [Violation::WrongFollowUp(tid(3), Some(2), vec![1])]
    );
    let found = violations(|evidence| {
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
    assert_eq!(
        found,
        [Violation::WrongFollowUp(tid(3), Some(2), vec![2, 2])]
    );
}

#[test]
fn a_missing_chained_task_is_lost() {
    let found = violations(|evidence| {
        evidence
            .lines
            .iter_mut()
            .filter(|line| line.tid == tid(3))
            .for_each(|line| line.class = Class::Chains);
    });
    assert_eq!(found, [Violation::MissingFollowUp(tid(3))]);
    assert!(found[0].is_loss());
}

#[test]
fn finds_chained_tasks_of_a_task_that_did_not_succeed() {
    let found = violations(|evidence| {
        chained(2)(evidence);
        let end =
            |event: &&mut TaskEvent| event.tid == tid(3) && event.event == TaskEventKind::Completed;
        evidence.events.iter_mut().find(end).unwrap().event = TaskEventKind::Killed;
        (evidence.task_counts.completed, evidence.task_counts.killed) = (2, 1);
        evidence
            .injected_faults
            .push(injected(FaultKind::KillRunner, 10 * SECOND, &[90]));
    });
    assert_eq!(found, [Violation::WrongFollowUp(tid(3), None, vec![2])]);
    let found = violations(|evidence| {
        chained(2)(evidence);
        evidence.follow_ups[0].parent = tid(77);
    });
    assert_eq!(
        found,
        [
            Violation::MissingFollowUp(tid(3)),
            Violation::WrongFollowUp(tid(77), None, vec![2])
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
        (evidence.task_counts.completed, evidence.task_counts.killed) = (2, 1);
    };
    assert!(matches!(violations(kill)[..], [Violation::Process(_)]));
    let found = violations(|evidence| {
        kill(evidence);
        evidence
            .injected_faults
            .push(injected(FaultKind::KillRunner, 10 * SECOND, &[90]));
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
        assert_eq!(
            check_submit_is_atomic(&batch(stored, planned)),
            None,
            "{stored} of {planned}"
        );
    }
    for (stored, planned) in [(4, 5), (6, 5), (999, 2500), (2400, 2500), (3000, 2500)] {
        let violation = Violation::PartialSubmit {
            batch: 4,
            planned,
            stored: stored as usize,
        };
        assert_eq!(
            check_submit_is_atomic(&batch(stored, planned)),
            Some(violation),
            "{stored} of {planned}"
        );
    }
    let short = Submitted {
        planned: 3,
        succeeded: true,
        accepted: vec![tid(1), tid(2)],
        ..Submitted::default()
    };
    assert!(check_submit_is_atomic(&short).is_some());
    // A `run` prints no id, so the broker must have its one task.
    let run = |stored: &[Tid]| Submitted {
        planned: 1,
        succeeded: true,
        is_run: true,
        stored: stored.to_vec(),
        ..batch(0, 1)
    };
    assert_eq!(check_submit_is_atomic(&run(&[tid(1)])), None);
    assert!(
        check_submit_is_atomic(&run(&[])).is_some()
            && check_submit_is_atomic(&run(&[tid(1), tid(2)])).is_some()
    );
}

#[test]
fn finds_tasks_that_were_not_submitted() {
    assert!(matches!(
        violations(|evidence| evidence.task_counts.unfinished += 1)[..],
        [Violation::CountMismatch(_)]
    ));
}

#[test]
fn wrong_output_and_process_errors_are_violations() {
    assert_eq!(
        violations(|evidence| evidence.mismatched_outputs.push(tid(1))),
        [Violation::OutputMismatch(tid(1))]
    );
    assert_eq!(
        violations(|evidence| evidence.process_errors.push("x".into())),
        [Violation::Process("x".into())]
    );
}

/// Messages 901 and 902 were accepted and became tasks 1 and 2.
fn with_letters(evidence: &mut Evidence) {
    let letter = |n| MessageTask {
        tid: tid(n),
        message: tid(900 + n),
    };
    evidence.messages = vec![letter(1), letter(2)];
    evidence.batches[0].accepted.retain(|one| *one == tid(3));
    evidence.batches[0].planned = 1;
    let accepted = vec![tid(901), tid(902)];
    let messages = Submitted {
        planned: 2,
        succeeded: true,
        is_messages: true,
        accepted,
        ..Submitted::default()
    };
    evidence.batches.push(messages);
}

#[test]
fn a_message_becomes_one_task() {
    let mut evidence = good();
    with_letters(&mut evidence);
    let verdict = check(&evidence);
    assert_eq!(
        (
            verdict.violations,
            verdict.figures.messages,
            verdict.figures.unacknowledged
        ),
        (vec![], 2, 0)
    );
    let lost = violations(|evidence| {
        with_letters(evidence);
        evidence.batches[1].accepted.push(tid(903));
        evidence.batches[1].planned += 1;
    });
    assert_eq!(lost, [Violation::MessageLost(tid(903))]);
    let twice = violations(|evidence| {
        with_letters(evidence);
        evidence.messages[1].message = tid(901);
        evidence.batches[1].accepted.pop();
        evidence.batches[1].planned -= 1;
    });
    assert_eq!(twice, [Violation::MessageDuplicated(tid(901), 2)]);
}

#[test]
fn a_due_time_is_fired_once_and_none_is_skipped() {
    let fired = |dues: [u64; 2]| {
        violations(|evidence| {
            evidence.trigger_tasks = vec![
                TriggerTask {
                    tid: tid(1),
                    due: dues[0],
                },
                TriggerTask {
                    tid: tid(2),
                    due: dues[1],
                },
            ];
        })
    };
    let every = TRIGGER_INTERVAL.as_nanos() as u64;
    assert_eq!(fired([7, 7 + every]), []);
    assert_eq!(fired([7, 7]), [Violation::FiredTwice(7)]);
    assert_eq!(
        fired([7, 7 + 3 * every]),
        [Violation::NotFired(7, 3 * TRIGGER_INTERVAL)]
    );
}

#[test]
fn a_registry_task_is_given_up_after_its_third_loss() {
    let plant = |losses: u32, is_registry_task: bool| {
        violations(|evidence| {
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
            evidence
                .registry_tasks
                .extend(is_registry_task.then_some(tid(1)));
            (evidence.task_counts.completed, evidence.task_counts.failed) = (2, 1);
        })
    };
    assert_eq!(plant(2, true), []);
    assert_eq!(
        plant(1, true),
        [Violation::WrongEnd(tid(1), TaskEventKind::Failed)]
    );
    assert_eq!(
        plant(2, false),
        [Violation::WrongEnd(tid(1), TaskEventKind::Failed)]
    );
}
