//! The core, without a broker, a process or a clock.

use raddle_broker::AttemptStarted;
use raddle_model::{AttemptReport, ControlCommand, TaskSpec, TaskState};

use super::{super::stopping::KILL_WITHIN, *};

const GRACE: Duration = Duration::from_secs(5);
const GIVE_UP_AFTER: Duration = Duration::from_secs(30);

pub(super) fn tid(number: u64) -> Tid {
    // The worker is 1; ids below the first slot of the clock are as good as any.
    (1_700_000_000_000_000_000 + number * 4096)
        .to_string()
        .parse()
        .unwrap()
}

pub(super) fn attempt_id(number: u64) -> AttemptId {
    AttemptId {
        tid: tid(number),
        attempt: 1,
        owner: tid(1),
    }
}

pub(super) fn claim(number: u64) -> LeasedTask {
    LeasedTask {
        attempt_id: attempt_id(number),
        spec: TaskSpec::command(["true"]),
        fencing_token: number,
    }
}

pub(super) fn finish(attempt_id: AttemptId, exit: ExitStatus) -> Box<Completion> {
    let report = AttemptReport::bare(exit, jiff::Timestamp::UNIX_EPOCH);
    Box::new(Completion {
        attempt_id,
        report,
        stdout: Vec::new(),
        stderr: Vec::new(),
    })
}

pub(super) fn gone() -> Error {
    Error::AgentGone {
        path: "agent.sock".into(),
        reason: "nobody is there".into(),
    }
}

pub(super) fn full() -> Error {
    Error::Full {
        path: "raddle.db".into(),
    }
}

pub(super) fn unreachable() -> Error {
    Error::Unreachable {
        place: "redis".into(),
        reason: "nobody is there".into(),
        down: false,
    }
}

pub(super) fn at(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(super) fn options() -> Options {
    // Without audits, which have tests of their own.
    let lease = Duration::from_secs(1_000_000);
    Options {
        concurrency: 2,
        grace: GRACE,
        give_up_after: GIVE_UP_AFTER,
        lease,
        ..Options::resident()
    }
}

pub(super) fn idle(options: Options) -> WorkerCore {
    WorkerCore::new(tid(1), options, Duration::ZERO, 0, None)
}

/// A worker with tasks 10, 11, … claimed, and as many of them begun as it has slots.
fn busy(options: Options, tasks: u64) -> WorkerCore {
    let mut core = idle(options);
    core.on(WorkerLoopEvent::Asked(0), at(0));
    core.on(
        WorkerLoopEvent::Claimed(Ok(ClaimResult::Tasks(
            (10..10 + tasks).map(claim).collect(),
        ))),
        at(1),
    );
    core
}

pub(super) fn told(of: Tid, word: ControlCommand) -> WorkerLoopEvent {
    WorkerLoopEvent::Told {
        tid: of,
        message: ControlMessage::new(word),
    }
}

/// An effect in a few words.
fn brief(effect: &WorkerEffect) -> String {
    let number = |attempt_id: &AttemptId| (attempt_id.tid.as_u64() - tid(0).as_u64()) / 4096;
    match effect {
        WorkerEffect::Claim { max, .. } => format!("claim {max}"),
        WorkerEffect::Unclaim => "unclaim".into(),
        WorkerEffect::Run { slot, claim } => format!("run {} in {slot}", number(&claim.attempt_id)),
        WorkerEffect::Order { slot, order } => format!("{order:?} {slot}"),
        WorkerEffect::Write(PendingWrite::Started(started)) => {
            format!("started {}", number(&started.attempt_id))
        }
        WorkerEffect::Write(PendingWrite::Finish(finish)) => {
            format!("finish {}", number(&finish.attempt_id))
        }
        WorkerEffect::Write(PendingWrite::Unbegun { attempt_id, exit }) => {
            format!("finish {} {exit:?}", number(attempt_id))
        }
        WorkerEffect::Write(PendingWrite::Release(release)) => {
            format!("release {}", number(&release.attempt_id))
        }
        WorkerEffect::Errand(CommandJob::Reply { reply, .. }) => format!("reply {}", reply.state),
        WorkerEffect::Errand(CommandJob::Paused { attempt_id, paused }) => {
            format!("paused {} {paused}", number(attempt_id))
        }
        WorkerEffect::Errand(CommandJob::PassOn { message, .. }) => {
            format!("pass on {}", message.command)
        }
        WorkerEffect::Forsake(attempt_id) => format!("forsake {}", number(attempt_id)),
        WorkerEffect::Haste => "haste".into(),
        WorkerEffect::Purge | WorkerEffect::Errand(CommandJob::Purge) => "purge".into(),
        WorkerEffect::Audit { held } => format!("audit {}", held.len()),
        WorkerEffect::Warn { attempt_id, .. } => format!("warn of {}", number(attempt_id)),
        WorkerEffect::End(Ok(LoopEnd::Left(reason))) => format!("left: {reason:?}"),
        WorkerEffect::End(Ok(LoopEnd::LeaseLost)) => "lease lost".into(),
        WorkerEffect::End(Err(error)) => format!("failed: {error}"),
    }
}

/// What the core does about an event, in a few words.
fn does(core: &mut WorkerCore, event: WorkerLoopEvent, now: Duration) -> String {
    core.on(event, now)
        .iter()
        .map(brief)
        .collect::<Vec<_>>()
        .join(", ")
}

fn ends(core: &mut WorkerCore, slot: usize, task: u64, exit: ExitStatus, now: Duration) -> String {
    does(
        core,
        WorkerLoopEvent::Ended {
            slot,
            finish: finish(attempt_id(task), exit),
            killed: false,
        },
        now,
    )
}

fn settles(
    core: &mut WorkerCore,
    task: u64,
    outcome: Option<CompletionOutcome>,
    now: Duration,
) -> String {
    does(
        core,
        WorkerLoopEvent::Settled {
            attempt_id: attempt_id(task),
            outcome,
        },
        now,
    )
}

pub(super) const OK: ExitStatus = ExitStatus::Code { code: 0 };
pub(super) const DONE: Option<CompletionOutcome> =
    Some(CompletionOutcome::Finished(TaskState::Completed));
pub(super) const AGAIN: Option<CompletionOutcome> =
    Some(CompletionOutcome::Retry(jiff::Timestamp::UNIX_EPOCH));

#[test]
fn a_task_goes_from_the_queue_to_a_slot_to_the_ledger() {
    let mut core = idle(options());
    assert_eq!(does(&mut core, WorkerLoopEvent::Asked(0), at(0)), "claim 2");
    assert_eq!(core.status(), "listening");
    assert_eq!(
        does(
            &mut core,
            WorkerLoopEvent::Claimed(Ok(ClaimResult::Tasks(vec![claim(10)]))),
            at(1)
        ),
        "run 10 in 0, claim 1"
    );
    assert_eq!(core.status(), "busy");
    let started = WorkerLoopEvent::Started(AttemptStarted {
        attempt_id: attempt_id(10),
        pid: Some(7),
    });
    assert_eq!(does(&mut core, started, at(2)), "started 10");
    assert_eq!(ends(&mut core, 0, 10, OK, at(1000)), "finish 10");
    assert_eq!(settles(&mut core, 10, DONE, at(1001)), "");
    assert_eq!(core.status(), "listening");
    assert_eq!(core.open().count(), 0);
}

#[test]
fn a_drained_worker_leaves_when_the_last_result_is_written() {
    let mut core = busy(options(), 1);
    assert_eq!(
        does(&mut core, WorkerLoopEvent::Asked(1), at(10)),
        "unclaim"
    );
    assert_eq!(core.status(), "draining");
    assert_eq!(ends(&mut core, 0, 10, OK, at(20)), "finish 10");
    assert_eq!(settles(&mut core, 10, DONE, at(21)), "left: Stopped");
}

#[test]
fn the_second_request_gives_back_and_the_third_kills() {
    let mut core = busy(options(), 2);
    does(&mut core, WorkerLoopEvent::Asked(1), at(10));
    assert_eq!(
        does(&mut core, WorkerLoopEvent::Asked(2), at(20)),
        "Stop 0, Stop 1"
    );
    assert_eq!(
        ends(&mut core, 0, 10, ExitStatus::Cancelled, at(30)),
        "release 10"
    );
    assert_eq!(
        does(&mut core, WorkerLoopEvent::Asked(3), at(40)),
        "haste, Kill 1"
    );
    // It had ended by itself when the order came.
    assert_eq!(ends(&mut core, 1, 11, OK, at(50)), "finish 11");
    assert_eq!(settles(&mut core, 10, AGAIN, at(51)), "");
    assert_eq!(settles(&mut core, 11, DONE, at(52)), "left: Stopped");
}

#[test]
fn grace_over_is_a_kill() {
    let mut core = busy(options(), 1);
    does(&mut core, WorkerLoopEvent::Asked(2), at(10));
    assert_eq!(core.wake_at(), Some(at(10) + GRACE));
    assert_eq!(
        does(&mut core, WorkerLoopEvent::Time, at(10) + GRACE),
        "haste, Kill 0"
    );
}

#[test]
fn a_kill_does_not_wait_for_a_result_that_is_given_up() {
    let mut core = busy(options(), 1);
    ends(&mut core, 0, 10, OK, at(20));
    assert_eq!(
        does(&mut core, WorkerLoopEvent::Unwritten(full()), at(30)),
        "",
        "a full disk may be emptied"
    );
    assert_eq!(
        does(&mut core, WorkerLoopEvent::Asked(3), at(40)),
        "haste, unclaim"
    );
    assert_eq!(settles(&mut core, 10, None, at(50)), "left: Stopped");
}

#[test]
fn a_kill_ends_though_nobody_answers() {
    let mut core = busy(options(), 2);
    ends(&mut core, 0, 10, OK, at(20));
    assert_eq!(
        does(&mut core, told(tid(1), ControlCommand::Kill), at(30)),
        "haste, Kill 1, reply stopping, unclaim"
    );
    assert_eq!(core.wake_at(), Some(at(30) + KILL_WITHIN));
    assert_eq!(
        does(
            &mut core,
            WorkerLoopEvent::Time,
            at(30) + KILL_WITHIN - at(1)
        ),
        ""
    );
    assert_eq!(core.open().count(), 2);
    assert_eq!(
        does(&mut core, WorkerLoopEvent::Time, at(30) + KILL_WITHIN),
        "left: Stopped"
    );
}

#[test]
fn an_unreachable_server_ends_the_worker_wherever_it_is_noticed() {
    let mut core = busy(options(), 1);
    assert_eq!(
        does(
            &mut core,
            WorkerLoopEvent::Claimed(Err(unreachable())),
            at(10)
        ),
        "haste, Kill 0"
    );
    assert_eq!(
        ends(&mut core, 0, 10, ExitStatus::Killed, at(20)),
        "release 10"
    );
    assert!(settles(&mut core, 10, None, at(30)).starts_with("failed: cannot reach redis"));
    // One that drains claims nothing, and has a result.
    let mut core = busy(options(), 1);
    does(&mut core, WorkerLoopEvent::Asked(1), at(10));
    ends(&mut core, 0, 10, OK, at(20));
    assert_eq!(
        does(&mut core, WorkerLoopEvent::Unwritten(unreachable()), at(30)),
        "haste"
    );
    assert!(settles(&mut core, 10, None, at(40)).starts_with("failed: cannot reach redis"));
}

#[test]
fn an_agent_may_be_away_for_a_while() {
    let mut core = idle(options());
    does(&mut core, WorkerLoopEvent::Asked(0), at(0));
    assert_eq!(
        does(&mut core, WorkerLoopEvent::Claimed(Err(gone())), at(1000)),
        ""
    );
    assert_eq!(core.wake_at(), Some(at(1000) + ERROR_PAUSE));
    assert_eq!(
        does(&mut core, WorkerLoopEvent::Time, at(1000) + ERROR_PAUSE),
        "claim 2"
    );
    // It comes back in between: the time begins anew.
    assert_eq!(
        does(
            &mut core,
            WorkerLoopEvent::Claimed(Ok(ClaimResult::Nothing)),
            at(20_000)
        ),
        "claim 2"
    );
    does(&mut core, WorkerLoopEvent::Claimed(Err(gone())), at(21_000));
    does(&mut core, WorkerLoopEvent::Time, at(22_000));
    assert_eq!(
        does(&mut core, WorkerLoopEvent::Claimed(Err(gone())), at(40_000)),
        ""
    );
    does(&mut core, WorkerLoopEvent::Time, at(50_000));
    let does = does(
        &mut core,
        WorkerLoopEvent::Claimed(Err(gone())),
        at(21_000) + GIVE_UP_AFTER,
    );
    assert!(
        does.starts_with("haste, failed: no answer from the agent"),
        "{does}"
    );
}

#[test]
fn what_is_claimed_ahead_goes_back_when_it_waits_too_long_or_the_worker_pauses() {
    let mut core = busy(options(), 4);
    assert_eq!(core.wake_at(), Some(at(1) + PATIENCE));
    assert_eq!(
        does(&mut core, WorkerLoopEvent::Time, at(1) + PATIENCE),
        "release 12, release 13"
    );
    let mut core = busy(options(), 4);
    assert_eq!(
        does(&mut core, told(tid(1), ControlCommand::Pause), at(10)),
        "release 12, release 13, reply paused"
    );
    assert_eq!(
        ends(&mut core, 0, 10, OK, at(20)),
        "finish 10",
        "nothing is begun"
    );
    assert_eq!(
        does(&mut core, told(tid(1), ControlCommand::Status), at(30)),
        "reply paused"
    );
    assert_eq!(
        does(&mut core, told(tid(1), ControlCommand::Resume), at(40)),
        "reply busy, claim 5"
    );
}

#[test]
fn who_begins_paused_takes_nothing_before_it_is_told_to() {
    let mut core = idle(Options {
        paused: true,
        ..options()
    });
    assert_eq!(does(&mut core, WorkerLoopEvent::Asked(0), at(0)), "");
    assert_eq!(
        (core.status(), core.registered_status()),
        ("paused", WorkerStatus::Paused)
    );
    let claims = does(&mut core, told(tid(1), ControlCommand::Resume), at(10));
    assert!(claims.starts_with("reply listening, claim "), "{claims}");
}

#[test]
fn words_reach_what_they_are_for() {
    let mut core = busy(options(), 5);
    assert_eq!(
        does(&mut core, told(tid(10), ControlCommand::Ping), at(10)),
        "reply running"
    );
    assert_eq!(
        does(&mut core, told(tid(10), ControlCommand::Pause), at(10)),
        "Pause 0, paused 10 true, reply paused"
    );
    assert_eq!(
        does(&mut core, told(tid(10), ControlCommand::Ping), at(10)),
        "reply paused"
    );
    assert_eq!(
        does(&mut core, told(tid(10), ControlCommand::Resume), at(10)),
        "Resume 0, paused 10 false, reply running"
    );
    assert_eq!(
        does(&mut core, told(tid(11), ControlCommand::Stop), at(10)),
        "Stop 1, reply stopping"
    );
    // Those that have not begun: answered, ended, or left to the broker together with the word.
    assert_eq!(
        does(&mut core, told(tid(12), ControlCommand::Status), at(10)),
        "reply spawning"
    );
    assert_eq!(
        does(&mut core, told(tid(12), ControlCommand::Kill), at(10)),
        "finish 12 Killed, reply stopping"
    );
    assert_eq!(
        does(&mut core, told(tid(13), ControlCommand::Pause), at(10)),
        "release 13"
    );
    assert_eq!(settles(&mut core, 13, AGAIN, at(11)), "pass on PAUSE");
    // One that is nobody's here.
    assert_eq!(
        does(&mut core, told(tid(99), ControlCommand::Stop), at(12)),
        "pass on STOP"
    );
    // One that is being written: it is for the task if that goes on.
    ends(&mut core, 0, 10, OK, at(13));
    assert_eq!(
        does(&mut core, told(tid(10), ControlCommand::Kill), at(14)),
        ""
    );
    assert_eq!(settles(&mut core, 10, AGAIN, at(15)), "pass on KILL");
    // One that crossed the end of its attempt, of a task that is over.
    assert!(ends(&mut core, 1, 11, OK, at(16)).starts_with("finish 11"));
    assert!(!settles(&mut core, 11, DONE, at(17)).contains("pass on"));
}

#[test]
fn a_stop_that_asks_for_it_gives_the_task_back() {
    let mut core = busy(options(), 2);
    let message = ControlMessage {
        requeue: true,
        ..ControlMessage::new(ControlCommand::Stop)
    };
    does(
        &mut core,
        WorkerLoopEvent::Told {
            tid: tid(10),
            message,
        },
        at(10),
    );
    does(&mut core, told(tid(11), ControlCommand::Stop), at(10));
    assert!(ends(&mut core, 0, 10, ExitStatus::Cancelled, at(20)).starts_with("release 10"));
    // Told by name to end, it ends, also when its worker stops after that.
    does(&mut core, WorkerLoopEvent::Asked(2), at(30));
    assert_eq!(
        ends(&mut core, 1, 11, ExitStatus::Cancelled, at(40)),
        "finish 11"
    );
}

#[test]
fn a_second_stop_does_not_hurry_a_worker() {
    let mut core = busy(options(), 1);
    assert_eq!(
        does(&mut core, told(tid(1), ControlCommand::Stop), at(10)),
        "reply draining, unclaim"
    );
    assert_eq!(
        does(&mut core, told(tid(1), ControlCommand::Stop), at(20)),
        "reply draining"
    );
}

#[test]
fn a_lost_lease_kills_what_runs_and_writes_nothing_of_what_has_not_begun() {
    let mut core = busy(options(), 3);
    assert_eq!(
        does(&mut core, WorkerLoopEvent::LeaseLost, at(10)),
        "forsake 12, Kill 0, Kill 1"
    );
    assert_eq!(
        ends(&mut core, 0, 10, ExitStatus::Killed, at(20)),
        "release 10"
    );
    assert_eq!(ends(&mut core, 1, 11, OK, at(20)), "finish 11");
    assert_eq!(
        settles(&mut core, 10, Some(CompletionOutcome::Stale), at(30)),
        ""
    );
    assert_eq!(
        settles(&mut core, 11, Some(CompletionOutcome::Stale), at(30)),
        "lease lost"
    );
    // The same, learnt from a claim; told to stop meanwhile, it does not come back under another id.
    let mut core = busy(options(), 1);
    assert_eq!(
        does(
            &mut core,
            WorkerLoopEvent::Claimed(Err(Error::NotFound(tid(1)))),
            at(10)
        ),
        "Kill 0"
    );
    does(&mut core, told(tid(1), ControlCommand::Stop), at(15));
    ends(&mut core, 0, 10, ExitStatus::Killed, at(20));
    assert_eq!(
        settles(&mut core, 10, Some(CompletionOutcome::Stale), at(30)),
        "left: Stopped"
    );
}

#[test]
fn an_idle_worker_leaves() {
    let mut core = busy(
        Options {
            idle_exit: Some(at(1000)),
            ..options()
        },
        1,
    );
    ends(&mut core, 0, 10, OK, at(500));
    settles(&mut core, 10, DONE, at(600));
    assert_eq!(core.wake_at(), Some(at(1500)));
    assert_eq!(does(&mut core, WorkerLoopEvent::Time, at(1499)), "");
    assert_eq!(
        does(&mut core, WorkerLoopEvent::Time, at(1500)),
        "left: Idle"
    );
    // Not while it is paused: somebody wants it to be there.
    let mut core = idle(Options {
        idle_exit: Some(at(1000)),
        ..options()
    });
    does(&mut core, told(tid(1), ControlCommand::Pause), at(0));
    assert_eq!(does(&mut core, WorkerLoopEvent::Time, at(5000)), "");
}

#[test]
fn one_that_leaves_when_nothing_waits_looks_again_after_each_task() {
    let mut core = busy(
        Options {
            idle_exit: Some(Duration::ZERO),
            ..options()
        },
        1,
    );
    assert_eq!(
        does(
            &mut core,
            WorkerLoopEvent::Claimed(Ok(ClaimResult::Nothing)),
            at(2)
        ),
        "claim 1"
    );
    ends(&mut core, 0, 10, OK, at(500));
    settles(&mut core, 10, AGAIN, at(600));
    assert_eq!(
        does(
            &mut core,
            WorkerLoopEvent::Claimed(Ok(ClaimResult::Nothing)),
            at(700)
        ),
        "left: Idle"
    );
}

#[test]
fn a_worker_for_one_task_leaves_with_it() {
    let only = || Options {
        concurrency: 1,
        only: Some(tid(10)),
        ..options()
    };
    let mut core = WorkerCore::new(tid(1), only(), Duration::ZERO, 0, Some(claim(10)));
    assert_eq!(
        does(&mut core, WorkerLoopEvent::Asked(0), at(0)),
        "run 10 in 0"
    );
    assert_eq!(
        ends(&mut core, 0, 10, OK, at(10)),
        "finish 10",
        "it does not claim while it does not know"
    );
    assert_eq!(settles(&mut core, 10, DONE, at(20)), "left: Done");
    // One that is tried again, and ends elsewhere.
    let mut core = WorkerCore::new(tid(1), only(), Duration::ZERO, 0, Some(claim(10)));
    does(&mut core, WorkerLoopEvent::Asked(0), at(0));
    ends(&mut core, 0, 10, OK, at(10));
    assert_eq!(settles(&mut core, 10, AGAIN, at(20)), "claim 1");
    assert_eq!(
        does(
            &mut core,
            WorkerLoopEvent::Claimed(Ok(ClaimResult::Nothing)),
            at(300)
        ),
        "claim 1"
    );
    assert_eq!(
        does(
            &mut core,
            WorkerLoopEvent::Claimed(Ok(ClaimResult::Over)),
            at(600)
        ),
        "left: Done"
    );
}

#[test]
fn a_worker_that_takes_one_task_takes_one() {
    let once = Options {
        concurrency: 1,
        max_tasks: Some(1),
        ..options()
    };
    let mut core = idle(once.clone());
    assert_eq!(does(&mut core, WorkerLoopEvent::Asked(0), at(0)), "claim 1");
    assert_eq!(core.status(), "listening");
    assert_eq!(
        does(
            &mut core,
            WorkerLoopEvent::Claimed(Ok(ClaimResult::Tasks(vec![claim(10)]))),
            at(1)
        ),
        "run 10 in 0"
    );
    assert_eq!(
        (core.status(), core.registered_status()),
        ("busy", WorkerStatus::Draining)
    );
    assert_eq!(ends(&mut core, 0, 10, OK, at(10)), "finish 10");
    assert_eq!(
        settles(&mut core, 10, AGAIN, at(20)),
        "left: Done",
        "another attempt is for another worker"
    );
    // One that was taken back before it began was not its task.
    let mut core = idle(once);
    does(&mut core, WorkerLoopEvent::Asked(0), at(0));
    does(&mut core, told(tid(1), ControlCommand::Pause), at(1));
    assert_eq!(
        does(&mut core, told(tid(1), ControlCommand::Resume), at(2)),
        "reply listening, claim 1"
    );
}

#[test]
fn an_old_worker_finishes_what_it_runs_and_leaves() {
    let mut core = busy(
        Options {
            concurrency: 1,
            max_uptime: Some(at(100)),
            ..options()
        },
        1,
    );
    assert_eq!(core.wake_at(), Some(at(100)));
    assert_eq!(does(&mut core, WorkerLoopEvent::Time, at(100)), "");
    assert_eq!(
        (core.status(), core.registered_status()),
        ("draining", WorkerStatus::Draining)
    );
    assert_eq!(ends(&mut core, 0, 10, OK, at(200)), "finish 10");
    assert_eq!(settles(&mut core, 10, DONE, at(210)), "left: Aged");
    // With nothing to do it leaves at once.
    let mut core = idle(Options {
        max_uptime: Some(at(100)),
        ..options()
    });
    does(&mut core, WorkerLoopEvent::Asked(0), at(0));
    assert_eq!(
        does(&mut core, WorkerLoopEvent::Time, at(100)),
        "left: Aged"
    );
}

#[test]
fn a_resident_worker_purges_now_and_then() {
    let mut core = idle(options());
    assert_eq!(does(&mut core, WorkerLoopEvent::Asked(0), at(0)), "claim 2");
    assert_eq!(core.wake_at(), Some(PURGE_EVERY));
    assert_eq!(does(&mut core, WorkerLoopEvent::Time, PURGE_EVERY), "purge");
    assert_eq!(core.wake_at(), Some(2 * PURGE_EVERY));
}

fn starved() -> ExitStatus {
    ExitStatus::ResourceExhausted {
        message: "no more processes".into(),
    }
}

#[test]
fn a_worker_that_can_start_nothing_takes_nothing_for_a_while() {
    let mut core = busy(options(), 3);
    assert_eq!(
        ends(&mut core, 0, 10, starved(), at(10)),
        "release 12, finish 10"
    );
    assert_eq!(core.wake_at(), Some(at(1010)), "and not before");
    assert_eq!(ends(&mut core, 1, 11, starved(), at(20)), "finish 11");
    assert_eq!(core.wake_at(), Some(at(2020)), "longer each time");
    assert_eq!(
        does(&mut core, WorkerLoopEvent::Time, at(2020)),
        "claim 1",
        "one is enough to see"
    );
    assert_eq!(
        does(
            &mut core,
            WorkerLoopEvent::Claimed(Ok(ClaimResult::Tasks(vec![claim(13)]))),
            at(2030)
        ),
        "run 13 in 0, claim 1"
    );
    assert_eq!(ends(&mut core, 0, 13, OK, at(2040)), "finish 13");
    assert_eq!(
        does(
            &mut core,
            WorkerLoopEvent::Claimed(Ok(ClaimResult::Nothing)),
            at(2050)
        ),
        "claim 10",
        "all is well again"
    );
}

#[test]
fn a_worker_for_one_task_that_cannot_start_it_fails() {
    let mut core = WorkerCore::new(
        tid(1),
        Options {
            concurrency: 1,
            only: Some(tid(10)),
            ..options()
        },
        Duration::ZERO,
        0,
        Some(claim(10)),
    );
    does(&mut core, WorkerLoopEvent::Asked(0), at(0));
    assert_eq!(ends(&mut core, 0, 10, starved(), at(10)), "finish 10");
    let end = settles(&mut core, 10, AGAIN, at(11));
    assert!(
        end.starts_with("failed: the system gives no process"),
        "{end}"
    );
}

#[test]
fn a_worker_whose_words_the_broker_does_not_take_fails() {
    let mut core = busy(options(), 1);
    assert_eq!(ends(&mut core, 0, 10, OK, at(20)), "finish 10");
    let refused = WorkerLoopEvent::Refused {
        attempt_id: attempt_id(10),
        error: Error::Closed,
    };
    assert_eq!(
        does(&mut core, refused, at(30)),
        "haste, failed: the broker was closed"
    );
}

/// What the broker answers to an audit, with the tasks that were held then and those that it assigns.
fn audited(held: &[u64], assigned: &[u64]) -> WorkerLoopEvent {
    let fences = |numbers: &[u64]| {
        numbers
            .iter()
            .map(|number| attempt_id(*number))
            .collect::<Vec<_>>()
    };
    WorkerLoopEvent::Audited {
        held: fences(held),
        assigned: fences(assigned).into_iter().collect(),
    }
}

#[test]
fn compares_what_it_holds_with_the_broker_twice_in_a_lease() {
    let lease = at(3000);
    let mut core = busy(Options { lease, ..options() }, 1);
    assert!(core.wake_at().is_some_and(|at| at <= lease / 2));
    assert_eq!(does(&mut core, WorkerLoopEvent::Time, lease / 2), "audit 1");
    assert_eq!(does(&mut core, WorkerLoopEvent::Time, lease / 2), "");
    assert_eq!(does(&mut core, audited(&[10], &[10]), lease / 2), "");
    assert_eq!(does(&mut core, WorkerLoopEvent::Time, lease), "audit 1");
}

#[test]
fn kills_an_attempt_whose_claim_the_broker_has_forgotten() {
    let mut core = busy(options(), 2);
    assert_eq!(
        does(&mut core, audited(&[10, 11], &[11]), at(2000)),
        "Kill 0, warn of 10"
    );
    // The broker refuses the release, and counts it.
    assert_eq!(
        ends(&mut core, 0, 10, ExitStatus::Killed, at(2010)),
        "release 10, claim 1"
    );
    assert_eq!(
        settles(&mut core, 10, Some(CompletionOutcome::Stale), at(2011)),
        ""
    );
}

#[test]
fn gives_back_an_attempt_that_only_the_broker_knows_of_at_the_second_audit() {
    let mut core = busy(options(), 1);
    assert_eq!(
        does(&mut core, audited(&[10], &[10, 77]), at(2000)),
        "",
        "the answer to its claim may be on its way"
    );
    assert_eq!(
        does(&mut core, audited(&[10], &[10, 77]), at(4000)),
        "warn of 77, release 77"
    );
    assert_eq!(settles(&mut core, 77, AGAIN, at(4001)), "");
}

#[test]
fn an_attempt_that_came_or_went_during_an_audit_is_left_alone() {
    let mut core = busy(options(), 1);
    // Claimed after the question, and not in the answer.
    core.on(
        WorkerLoopEvent::Claimed(Ok(ClaimResult::Tasks(vec![claim(11)]))),
        at(1500),
    );
    assert_eq!(does(&mut core, audited(&[10], &[10]), at(2000)), "");
    // Ended after the answer was made, and its end is being written.
    ends(&mut core, 0, 10, OK, at(2500));
    assert_eq!(does(&mut core, audited(&[10, 11], &[10, 11]), at(3000)), "");
    settles(&mut core, 10, DONE, at(3001));
    assert_eq!(does(&mut core, audited(&[11], &[11]), at(4500)), "");
}

#[test]
fn does_not_begin_an_attempt_twice_that_a_forgetful_server_gives_out_again() {
    let mut core = busy(options(), 1);
    assert_eq!(
        does(
            &mut core,
            WorkerLoopEvent::Claimed(Ok(ClaimResult::Tasks(vec![claim(10)]))),
            at(50)
        ),
        "claim 1"
    );
}
