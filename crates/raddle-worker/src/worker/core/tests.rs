//! Unit tests of `WorkerCore`, without a broker, a process or a clock.

use raddle_broker::AttemptStarted;
use raddle_model::{AttemptReport, ControlCommand, TaskSpec, TaskState};

use super::{super::stopping::KILL_TIMEOUT, *};

const GRACE: Duration = Duration::from_secs(5);
const GIVE_UP_AFTER: Duration = Duration::from_secs(30);

pub(super) fn tid(number: u64) -> Tid {
    // Any valid TIDs will do. The worker has number 1.
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
        reason: "connection refused".into(),
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
        reason: "connection refused".into(),
        down: false,
    }
}

pub(super) fn at_millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(super) fn options() -> Options {
    // Without audits, which have their own tests.
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

/// A worker that has claimed tasks 10, 11, … and started as many as it has slots.
fn busy(options: Options, tasks: u64) -> WorkerCore {
    let mut core = idle(options);
    core.handle_event(WorkerLoopEvent::StopRequested(0), at_millis(0));
    core.handle_event(
        WorkerLoopEvent::Claimed(Ok(ClaimResult::Tasks(
            (10..10 + tasks).map(claim).collect(),
        ))),
        at_millis(1),
    );
    core
}

pub(super) fn command(of: Tid, word: ControlCommand) -> WorkerLoopEvent {
    WorkerLoopEvent::Command {
        tid: of,
        message: ControlMessage::new(word),
    }
}

/// An effect as a short text.
fn brief(effect: &WorkerEffect) -> String {
    let number = |attempt_id: &AttemptId| (attempt_id.tid.as_u64() - tid(0).as_u64()) / 4096;
    match effect {
        WorkerEffect::Claim { max, .. } => format!("claim {max}"),
        WorkerEffect::CancelClaim => "unclaim".into(),
        WorkerEffect::Run { slot, task } => format!("run {} in {slot}", number(&task.attempt_id)),
        WorkerEffect::SendCommand { slot, command } => format!("{command:?} {slot}"),
        WorkerEffect::Write(PendingWrite::Started(started)) => {
            format!("started {}", number(&started.attempt_id))
        }
        WorkerEffect::Write(PendingWrite::Finish(finish)) => {
            format!("finish {}", number(&finish.attempt_id))
        }
        WorkerEffect::Write(PendingWrite::FinishUnstarted { attempt_id, exit }) => {
            format!("finish {} {exit:?}", number(attempt_id))
        }
        WorkerEffect::Write(PendingWrite::Release(release)) => {
            format!("release {}", number(&release.attempt_id))
        }
        WorkerEffect::RunJob(CommandJob::Reply { reply, .. }) => format!("reply {}", reply.state),
        WorkerEffect::RunJob(CommandJob::RecordPause { attempt_id, paused }) => {
            format!("paused {} {paused}", number(attempt_id))
        }
        WorkerEffect::RunJob(CommandJob::Forward { message, .. }) => {
            format!("pass on {}", message.command)
        }
        WorkerEffect::Abandon(attempt_id) => format!("abandon {}", number(attempt_id)),
        WorkerEffect::StartDeadline => "haste".into(),
        WorkerEffect::Purge | WorkerEffect::RunJob(CommandJob::Purge) => "purge".into(),
        WorkerEffect::Audit { held } => format!("audit {}", held.len()),
        WorkerEffect::Warn { attempt_id, .. } => format!("warn of {}", number(attempt_id)),
        WorkerEffect::End(Ok(LoopEnd::Exit(reason))) => format!("left: {reason:?}"),
        WorkerEffect::End(Ok(LoopEnd::LeaseLost)) => "lease lost".into(),
        WorkerEffect::End(Err(error)) => format!("failed: {error}"),
    }
}

/// The effects of an event as a short text.
fn does(core: &mut WorkerCore, event: WorkerLoopEvent, now: Duration) -> String {
    core.handle_event(event, now)
        .iter()
        .map(brief)
        .collect::<Vec<_>>()
        .join(", ")
}

fn ends(core: &mut WorkerCore, slot: usize, task: u64, exit: ExitStatus, now: Duration) -> String {
    does(
        core,
        WorkerLoopEvent::AttemptEnded {
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
        WorkerLoopEvent::Recorded {
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
fn runs_a_claimed_task_and_writes_its_end() {
    let mut core = idle(options());
    assert_eq!(
        does(&mut core, WorkerLoopEvent::StopRequested(0), at_millis(0)),
        "claim 2"
    );
    assert_eq!(core.status(), "listening");
    assert_eq!(
        does(
            &mut core,
            WorkerLoopEvent::Claimed(Ok(ClaimResult::Tasks(vec![claim(10)]))),
            at_millis(1)
        ),
        "run 10 in 0, claim 1"
    );
    assert_eq!(core.status(), "busy");
    let started = WorkerLoopEvent::Started(AttemptStarted {
        attempt_id: attempt_id(10),
        pid: Some(7),
    });
    assert_eq!(does(&mut core, started, at_millis(2)), "started 10");
    assert_eq!(ends(&mut core, 0, 10, OK, at_millis(1000)), "finish 10");
    assert_eq!(settles(&mut core, 10, DONE, at_millis(1001)), "");
    assert_eq!(core.status(), "listening");
    assert_eq!(core.open_attempts().count(), 0);
}

#[test]
fn a_draining_worker_exits_when_the_last_result_is_written() {
    let mut core = busy(options(), 1);
    assert_eq!(
        does(&mut core, WorkerLoopEvent::StopRequested(1), at_millis(10)),
        "unclaim"
    );
    assert_eq!(core.status(), "draining");
    assert_eq!(ends(&mut core, 0, 10, OK, at_millis(20)), "finish 10");
    assert_eq!(settles(&mut core, 10, DONE, at_millis(21)), "left: Stopped");
}

#[test]
fn the_second_stop_request_releases_and_the_third_kills() {
    let mut core = busy(options(), 2);
    does(&mut core, WorkerLoopEvent::StopRequested(1), at_millis(10));
    assert_eq!(
        does(&mut core, WorkerLoopEvent::StopRequested(2), at_millis(20)),
        "Stop 0, Stop 1"
    );
    assert_eq!(
        ends(&mut core, 0, 10, ExitStatus::Cancelled, at_millis(30)),
        "release 10"
    );
    assert_eq!(
        does(&mut core, WorkerLoopEvent::StopRequested(3), at_millis(40)),
        "haste, Kill 1"
    );
    // It had ended by itself before the kill.
    assert_eq!(ends(&mut core, 1, 11, OK, at_millis(50)), "finish 11");
    assert_eq!(settles(&mut core, 10, AGAIN, at_millis(51)), "");
    assert_eq!(settles(&mut core, 11, DONE, at_millis(52)), "left: Stopped");
}

#[test]
fn kills_after_the_grace_period() {
    let mut core = busy(options(), 1);
    does(&mut core, WorkerLoopEvent::StopRequested(2), at_millis(10));
    assert_eq!(core.wake_at(), Some(at_millis(10) + GRACE));
    assert_eq!(
        does(
            &mut core,
            WorkerLoopEvent::TimerFired,
            at_millis(10) + GRACE
        ),
        "haste, Kill 0"
    );
}

#[test]
fn a_killed_worker_does_not_wait_for_a_result_that_was_given_up() {
    let mut core = busy(options(), 1);
    ends(&mut core, 0, 10, OK, at_millis(20));
    assert_eq!(
        does(
            &mut core,
            WorkerLoopEvent::WriteFailed(full()),
            at_millis(30)
        ),
        "",
        "a full disk may get space"
    );
    assert_eq!(
        does(&mut core, WorkerLoopEvent::StopRequested(3), at_millis(40)),
        "haste, unclaim"
    );
    assert_eq!(settles(&mut core, 10, None, at_millis(50)), "left: Stopped");
}

#[test]
fn a_killed_worker_exits_without_answers_from_slots_and_broker() {
    let mut core = busy(options(), 2);
    ends(&mut core, 0, 10, OK, at_millis(20));
    assert_eq!(
        does(
            &mut core,
            command(tid(1), ControlCommand::Kill),
            at_millis(30)
        ),
        "haste, Kill 1, reply stopping, unclaim"
    );
    assert_eq!(core.wake_at(), Some(at_millis(30) + KILL_TIMEOUT));
    assert_eq!(
        does(
            &mut core,
            WorkerLoopEvent::TimerFired,
            at_millis(30) + KILL_TIMEOUT - at_millis(1)
        ),
        ""
    );
    assert_eq!(core.open_attempts().count(), 2);
    assert_eq!(
        does(
            &mut core,
            WorkerLoopEvent::TimerFired,
            at_millis(30) + KILL_TIMEOUT
        ),
        "left: Stopped"
    );
}

#[test]
fn an_unreachable_server_ends_the_worker() {
    let mut core = busy(options(), 1);
    assert_eq!(
        does(
            &mut core,
            WorkerLoopEvent::Claimed(Err(unreachable())),
            at_millis(10)
        ),
        "haste, Kill 0"
    );
    assert_eq!(
        ends(&mut core, 0, 10, ExitStatus::Killed, at_millis(20)),
        "release 10"
    );
    assert!(settles(&mut core, 10, None, at_millis(30)).starts_with("failed: cannot reach redis"));
    // A draining worker makes no claims, but writes a result.
    let mut core = busy(options(), 1);
    does(&mut core, WorkerLoopEvent::StopRequested(1), at_millis(10));
    ends(&mut core, 0, 10, OK, at_millis(20));
    assert_eq!(
        does(
            &mut core,
            WorkerLoopEvent::WriteFailed(unreachable()),
            at_millis(30)
        ),
        "haste"
    );
    assert!(settles(&mut core, 10, None, at_millis(40)).starts_with("failed: cannot reach redis"));
}

#[test]
fn an_agent_may_be_unreachable_for_give_up_after() {
    let mut core = idle(options());
    does(&mut core, WorkerLoopEvent::StopRequested(0), at_millis(0));
    assert_eq!(
        does(
            &mut core,
            WorkerLoopEvent::Claimed(Err(gone())),
            at_millis(1000)
        ),
        ""
    );
    assert_eq!(core.wake_at(), Some(at_millis(1000) + ERROR_PAUSE));
    assert_eq!(
        does(
            &mut core,
            WorkerLoopEvent::TimerFired,
            at_millis(1000) + ERROR_PAUSE
        ),
        "claim 2"
    );
    // It answers in between, so the time starts again.
    assert_eq!(
        does(
            &mut core,
            WorkerLoopEvent::Claimed(Ok(ClaimResult::Empty)),
            at_millis(20_000)
        ),
        "claim 2"
    );
    does(
        &mut core,
        WorkerLoopEvent::Claimed(Err(gone())),
        at_millis(21_000),
    );
    does(&mut core, WorkerLoopEvent::TimerFired, at_millis(22_000));
    assert_eq!(
        does(
            &mut core,
            WorkerLoopEvent::Claimed(Err(gone())),
            at_millis(40_000)
        ),
        ""
    );
    does(&mut core, WorkerLoopEvent::TimerFired, at_millis(50_000));
    let does = does(
        &mut core,
        WorkerLoopEvent::Claimed(Err(gone())),
        at_millis(21_000) + GIVE_UP_AFTER,
    );
    assert!(
        does.starts_with("haste, failed: no answer from the agent"),
        "{does}"
    );
}

#[test]
fn releases_prefetched_tasks_that_wait_too_long_and_on_pause() {
    let mut core = busy(options(), 4);
    assert_eq!(core.wake_at(), Some(at_millis(1) + MAX_WAIT));
    assert_eq!(
        does(
            &mut core,
            WorkerLoopEvent::TimerFired,
            at_millis(1) + MAX_WAIT
        ),
        "release 12, release 13"
    );
    let mut core = busy(options(), 4);
    assert_eq!(
        does(
            &mut core,
            command(tid(1), ControlCommand::Pause),
            at_millis(10)
        ),
        "release 12, release 13, reply paused"
    );
    assert_eq!(
        ends(&mut core, 0, 10, OK, at_millis(20)),
        "finish 10",
        "nothing is started"
    );
    assert_eq!(
        does(
            &mut core,
            command(tid(1), ControlCommand::Status),
            at_millis(30)
        ),
        "reply paused"
    );
    assert_eq!(
        does(
            &mut core,
            command(tid(1), ControlCommand::Resume),
            at_millis(40)
        ),
        "reply busy, claim 5"
    );
}

#[test]
fn a_worker_that_starts_paused_claims_nothing_before_resume() {
    let mut core = idle(Options {
        paused: true,
        ..options()
    });
    assert_eq!(
        does(&mut core, WorkerLoopEvent::StopRequested(0), at_millis(0)),
        ""
    );
    assert_eq!(
        (core.status(), core.registered_status()),
        ("paused", WorkerStatus::Paused)
    );
    let claims = does(
        &mut core,
        command(tid(1), ControlCommand::Resume),
        at_millis(10),
    );
    assert!(claims.starts_with("reply listening, claim "), "{claims}");
}

#[test]
fn commands_reach_their_target() {
    let mut core = busy(options(), 5);
    assert_eq!(
        does(
            &mut core,
            command(tid(10), ControlCommand::Ping),
            at_millis(10)
        ),
        "reply running"
    );
    assert_eq!(
        does(
            &mut core,
            command(tid(10), ControlCommand::Pause),
            at_millis(10)
        ),
        "Pause 0, paused 10 true, reply paused"
    );
    assert_eq!(
        does(
            &mut core,
            command(tid(10), ControlCommand::Ping),
            at_millis(10)
        ),
        "reply paused"
    );
    assert_eq!(
        does(
            &mut core,
            command(tid(10), ControlCommand::Resume),
            at_millis(10)
        ),
        "Resume 0, paused 10 false, reply running"
    );
    assert_eq!(
        does(
            &mut core,
            command(tid(11), ControlCommand::Stop),
            at_millis(10)
        ),
        "Stop 1, reply stopping"
    );
    // Prefetched tasks: answered, ended, or released to the broker together with the command.
    assert_eq!(
        does(
            &mut core,
            command(tid(12), ControlCommand::Status),
            at_millis(10)
        ),
        "reply spawning"
    );
    assert_eq!(
        does(
            &mut core,
            command(tid(12), ControlCommand::Kill),
            at_millis(10)
        ),
        "finish 12 Killed, reply stopping"
    );
    assert_eq!(
        does(
            &mut core,
            command(tid(13), ControlCommand::Pause),
            at_millis(10)
        ),
        "release 13"
    );
    assert_eq!(
        settles(&mut core, 13, AGAIN, at_millis(11)),
        "pass on PAUSE"
    );
    // A task that this worker does not hold.
    assert_eq!(
        does(
            &mut core,
            command(tid(99), ControlCommand::Stop),
            at_millis(12)
        ),
        "pass on STOP"
    );
    // A task whose end is being written: the command is forwarded if the task is retried.
    ends(&mut core, 0, 10, OK, at_millis(13));
    assert_eq!(
        does(
            &mut core,
            command(tid(10), ControlCommand::Kill),
            at_millis(14)
        ),
        ""
    );
    assert_eq!(settles(&mut core, 10, AGAIN, at_millis(15)), "pass on KILL");
    // A command that crossed the end of its attempt, and the task is finished.
    assert!(ends(&mut core, 1, 11, OK, at_millis(16)).starts_with("finish 11"));
    assert!(!settles(&mut core, 11, DONE, at_millis(17)).contains("pass on"));
}

#[test]
fn a_stop_with_requeue_releases_the_task() {
    let mut core = busy(options(), 2);
    let message = ControlMessage {
        requeue: true,
        ..ControlMessage::new(ControlCommand::Stop)
    };
    does(
        &mut core,
        WorkerLoopEvent::Command {
            tid: tid(10),
            message,
        },
        at_millis(10),
    );
    does(
        &mut core,
        command(tid(11), ControlCommand::Stop),
        at_millis(10),
    );
    assert!(ends(&mut core, 0, 10, ExitStatus::Cancelled, at_millis(20)).starts_with("release 10"));
    // It got its own STOP, so it is cancelled, even though its worker stops later.
    does(&mut core, WorkerLoopEvent::StopRequested(2), at_millis(30));
    assert_eq!(
        ends(&mut core, 1, 11, ExitStatus::Cancelled, at_millis(40)),
        "finish 11"
    );
}

#[test]
fn a_second_stop_command_does_not_escalate() {
    let mut core = busy(options(), 1);
    assert_eq!(
        does(
            &mut core,
            command(tid(1), ControlCommand::Stop),
            at_millis(10)
        ),
        "reply draining, unclaim"
    );
    assert_eq!(
        does(
            &mut core,
            command(tid(1), ControlCommand::Stop),
            at_millis(20)
        ),
        "reply draining"
    );
}

#[test]
fn a_lost_lease_kills_running_attempts_and_abandons_prefetched_tasks() {
    let mut core = busy(options(), 3);
    assert_eq!(
        does(&mut core, WorkerLoopEvent::LeaseLost, at_millis(10)),
        "abandon 12, Kill 0, Kill 1"
    );
    assert_eq!(
        ends(&mut core, 0, 10, ExitStatus::Killed, at_millis(20)),
        "release 10"
    );
    assert_eq!(ends(&mut core, 1, 11, OK, at_millis(20)), "finish 11");
    assert_eq!(
        settles(&mut core, 10, Some(CompletionOutcome::Stale), at_millis(30)),
        ""
    );
    assert_eq!(
        settles(&mut core, 11, Some(CompletionOutcome::Stale), at_millis(30)),
        "lease lost"
    );
    // The same, learnt from a claim. A worker that was stopped meanwhile does not register again.
    let mut core = busy(options(), 1);
    assert_eq!(
        does(
            &mut core,
            WorkerLoopEvent::Claimed(Err(Error::NotFound(tid(1)))),
            at_millis(10)
        ),
        "Kill 0"
    );
    does(
        &mut core,
        command(tid(1), ControlCommand::Stop),
        at_millis(15),
    );
    ends(&mut core, 0, 10, ExitStatus::Killed, at_millis(20));
    assert_eq!(
        settles(&mut core, 10, Some(CompletionOutcome::Stale), at_millis(30)),
        "left: Stopped"
    );
}

#[test]
fn an_idle_worker_exits_after_idle_exit() {
    let mut core = busy(
        Options {
            idle_exit: Some(at_millis(1000)),
            ..options()
        },
        1,
    );
    ends(&mut core, 0, 10, OK, at_millis(500));
    settles(&mut core, 10, DONE, at_millis(600));
    assert_eq!(core.wake_at(), Some(at_millis(1500)));
    assert_eq!(
        does(&mut core, WorkerLoopEvent::TimerFired, at_millis(1499)),
        ""
    );
    assert_eq!(
        does(&mut core, WorkerLoopEvent::TimerFired, at_millis(1500)),
        "left: Idle"
    );
    // Not while it is paused: its operator wants it to stay.
    let mut core = idle(Options {
        idle_exit: Some(at_millis(1000)),
        ..options()
    });
    does(
        &mut core,
        command(tid(1), ControlCommand::Pause),
        at_millis(0),
    );
    assert_eq!(
        does(&mut core, WorkerLoopEvent::TimerFired, at_millis(5000)),
        ""
    );
}

#[test]
fn a_worker_that_exits_when_idle_claims_again_after_each_task() {
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
            WorkerLoopEvent::Claimed(Ok(ClaimResult::Empty)),
            at_millis(2)
        ),
        "claim 1"
    );
    ends(&mut core, 0, 10, OK, at_millis(500));
    settles(&mut core, 10, AGAIN, at_millis(600));
    assert_eq!(
        does(
            &mut core,
            WorkerLoopEvent::Claimed(Ok(ClaimResult::Empty)),
            at_millis(700)
        ),
        "left: Idle"
    );
}

#[test]
fn a_worker_for_one_task_exits_when_the_task_finishes() {
    let only = || Options {
        concurrency: 1,
        only: Some(tid(10)),
        ..options()
    };
    let mut core = WorkerCore::new(tid(1), only(), Duration::ZERO, 0, Some(claim(10)));
    assert_eq!(
        does(&mut core, WorkerLoopEvent::StopRequested(0), at_millis(0)),
        "run 10 in 0"
    );
    assert_eq!(
        ends(&mut core, 0, 10, OK, at_millis(10)),
        "finish 10",
        "no claim while the outcome is unknown"
    );
    assert_eq!(settles(&mut core, 10, DONE, at_millis(20)), "left: Done");
    // A task that is retried, and ends on another worker.
    let mut core = WorkerCore::new(tid(1), only(), Duration::ZERO, 0, Some(claim(10)));
    does(&mut core, WorkerLoopEvent::StopRequested(0), at_millis(0));
    ends(&mut core, 0, 10, OK, at_millis(10));
    assert_eq!(settles(&mut core, 10, AGAIN, at_millis(20)), "claim 1");
    assert_eq!(
        does(
            &mut core,
            WorkerLoopEvent::Claimed(Ok(ClaimResult::Empty)),
            at_millis(300)
        ),
        "claim 1"
    );
    assert_eq!(
        does(
            &mut core,
            WorkerLoopEvent::Claimed(Ok(ClaimResult::TaskFinished)),
            at_millis(600)
        ),
        "left: Done"
    );
}

#[test]
fn a_one_shot_worker_runs_one_attempt() {
    let once = Options {
        concurrency: 1,
        max_tasks: Some(1),
        ..options()
    };
    let mut core = idle(once.clone());
    assert_eq!(
        does(&mut core, WorkerLoopEvent::StopRequested(0), at_millis(0)),
        "claim 1"
    );
    assert_eq!(core.status(), "listening");
    assert_eq!(
        does(
            &mut core,
            WorkerLoopEvent::Claimed(Ok(ClaimResult::Tasks(vec![claim(10)]))),
            at_millis(1)
        ),
        "run 10 in 0"
    );
    assert_eq!(
        (core.status(), core.registered_status()),
        ("busy", WorkerStatus::Draining)
    );
    assert_eq!(ends(&mut core, 0, 10, OK, at_millis(10)), "finish 10");
    assert_eq!(
        settles(&mut core, 10, AGAIN, at_millis(20)),
        "left: Done",
        "the retry is for another worker"
    );
    // A pause before its task has started does not use it up.
    let mut core = idle(once);
    does(&mut core, WorkerLoopEvent::StopRequested(0), at_millis(0));
    does(
        &mut core,
        command(tid(1), ControlCommand::Pause),
        at_millis(1),
    );
    assert_eq!(
        does(
            &mut core,
            command(tid(1), ControlCommand::Resume),
            at_millis(2)
        ),
        "reply listening, claim 1"
    );
}

#[test]
fn a_worker_past_its_maximum_uptime_finishes_its_attempts_and_exits() {
    let mut core = busy(
        Options {
            concurrency: 1,
            max_uptime: Some(at_millis(100)),
            ..options()
        },
        1,
    );
    assert_eq!(core.wake_at(), Some(at_millis(100)));
    assert_eq!(
        does(&mut core, WorkerLoopEvent::TimerFired, at_millis(100)),
        ""
    );
    assert_eq!(
        (core.status(), core.registered_status()),
        ("draining", WorkerStatus::Draining)
    );
    assert_eq!(ends(&mut core, 0, 10, OK, at_millis(200)), "finish 10");
    assert_eq!(settles(&mut core, 10, DONE, at_millis(210)), "left: Aged");
    // An idle one exits at once.
    let mut core = idle(Options {
        max_uptime: Some(at_millis(100)),
        ..options()
    });
    does(&mut core, WorkerLoopEvent::StopRequested(0), at_millis(0));
    assert_eq!(
        does(&mut core, WorkerLoopEvent::TimerFired, at_millis(100)),
        "left: Aged"
    );
}

#[test]
fn a_resident_worker_purges_every_minute() {
    let mut core = idle(options());
    assert_eq!(
        does(&mut core, WorkerLoopEvent::StopRequested(0), at_millis(0)),
        "claim 2"
    );
    assert_eq!(core.wake_at(), Some(PURGE_EVERY));
    assert_eq!(
        does(&mut core, WorkerLoopEvent::TimerFired, PURGE_EVERY),
        "purge"
    );
    assert_eq!(core.wake_at(), Some(2 * PURGE_EVERY));
}

fn exhausted() -> ExitStatus {
    ExitStatus::ResourceExhausted {
        message: "no more processes".into(),
    }
}

#[test]
fn backs_off_when_it_cannot_start_attempts() {
    let mut core = busy(options(), 3);
    assert_eq!(
        ends(&mut core, 0, 10, exhausted(), at_millis(10)),
        "release 12, finish 10"
    );
    assert_eq!(
        core.wake_at(),
        Some(at_millis(1010)),
        "not before the pause is over"
    );
    assert_eq!(
        ends(&mut core, 1, 11, exhausted(), at_millis(20)),
        "finish 11"
    );
    assert_eq!(core.wake_at(), Some(at_millis(2020)), "the pause doubles");
    assert_eq!(
        does(&mut core, WorkerLoopEvent::TimerFired, at_millis(2020)),
        "claim 1",
        "one attempt is enough to test"
    );
    assert_eq!(
        does(
            &mut core,
            WorkerLoopEvent::Claimed(Ok(ClaimResult::Tasks(vec![claim(13)]))),
            at_millis(2030)
        ),
        "run 13 in 0, claim 1"
    );
    assert_eq!(ends(&mut core, 0, 13, OK, at_millis(2040)), "finish 13");
    assert_eq!(
        does(
            &mut core,
            WorkerLoopEvent::Claimed(Ok(ClaimResult::Empty)),
            at_millis(2050)
        ),
        "claim 10",
        "back to normal"
    );
}

#[test]
fn a_worker_for_one_task_fails_if_it_cannot_start_the_task() {
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
    does(&mut core, WorkerLoopEvent::StopRequested(0), at_millis(0));
    assert_eq!(
        ends(&mut core, 0, 10, exhausted(), at_millis(10)),
        "finish 10"
    );
    let end = settles(&mut core, 10, AGAIN, at_millis(11));
    assert!(
        end.starts_with("failed: the system provides no process"),
        "{end}"
    );
}

#[test]
fn a_worker_whose_writes_are_refused_fails() {
    let mut core = busy(options(), 1);
    assert_eq!(ends(&mut core, 0, 10, OK, at_millis(20)), "finish 10");
    let refused = WorkerLoopEvent::WriteRefused {
        attempt_id: attempt_id(10),
        error: Error::Closed,
    };
    assert_eq!(
        does(&mut core, refused, at_millis(30)),
        "haste, failed: the broker was closed"
    );
}

/// The result of an audit.
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
fn audits_twice_in_a_lease() {
    let lease = at_millis(3000);
    let mut core = busy(Options { lease, ..options() }, 1);
    assert!(core.wake_at().is_some_and(|at| at <= lease / 2));
    assert_eq!(
        does(&mut core, WorkerLoopEvent::TimerFired, lease / 2),
        "audit 1"
    );
    assert_eq!(does(&mut core, WorkerLoopEvent::TimerFired, lease / 2), "");
    assert_eq!(does(&mut core, audited(&[10], &[10]), lease / 2), "");
    assert_eq!(
        does(&mut core, WorkerLoopEvent::TimerFired, lease),
        "audit 1"
    );
}

#[test]
fn kills_an_attempt_whose_claim_the_broker_has_forgotten() {
    let mut core = busy(options(), 2);
    assert_eq!(
        does(&mut core, audited(&[10, 11], &[11]), at_millis(2000)),
        "Kill 0, warn of 10"
    );
    // The broker refuses the release and counts it.
    assert_eq!(
        ends(&mut core, 0, 10, ExitStatus::Killed, at_millis(2010)),
        "release 10, claim 1"
    );
    assert_eq!(
        settles(
            &mut core,
            10,
            Some(CompletionOutcome::Stale),
            at_millis(2011)
        ),
        ""
    );
}

#[test]
fn releases_an_attempt_that_only_the_broker_knows_at_the_second_audit() {
    let mut core = busy(options(), 1);
    assert_eq!(
        does(&mut core, audited(&[10], &[10, 77]), at_millis(2000)),
        "",
        "the answer to its claim may be in flight"
    );
    assert_eq!(
        does(&mut core, audited(&[10], &[10, 77]), at_millis(4000)),
        "warn of 77, release 77"
    );
    assert_eq!(settles(&mut core, 77, AGAIN, at_millis(4001)), "");
}

#[test]
fn ignores_attempts_that_started_or_ended_during_an_audit() {
    let mut core = busy(options(), 1);
    // Claimed after the query, so not in the answer.
    core.handle_event(
        WorkerLoopEvent::Claimed(Ok(ClaimResult::Tasks(vec![claim(11)]))),
        at_millis(1500),
    );
    assert_eq!(does(&mut core, audited(&[10], &[10]), at_millis(2000)), "");
    // Ended after the query, and its end is being written.
    ends(&mut core, 0, 10, OK, at_millis(2500));
    assert_eq!(
        does(&mut core, audited(&[10, 11], &[10, 11]), at_millis(3000)),
        ""
    );
    settles(&mut core, 10, DONE, at_millis(3001));
    assert_eq!(does(&mut core, audited(&[11], &[11]), at_millis(4500)), "");
}

#[test]
fn does_not_start_an_attempt_twice_that_a_forgetful_server_hands_out_again() {
    let mut core = busy(options(), 1);
    assert_eq!(
        does(
            &mut core,
            WorkerLoopEvent::Claimed(Ok(ClaimResult::Tasks(vec![claim(10)]))),
            at_millis(50)
        ),
        "claim 1"
    );
}
