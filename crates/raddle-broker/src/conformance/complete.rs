//! The end of attempts, and of tasks.

use jiff::Timestamp;
use raddle_model::{
    AttemptReport, ControlCommand, ControlMessage, ExitStatus, HumanDuration, TaskEventKind,
    TaskSpec, TaskState, Tid, spec::ReservedPolicy,
};

use super::{Fixture, Handle, support::*};
use crate::{
    AttemptId, AttemptStarted, ChainRequest, Completion, CompletionOutcome, Error, OutputStream,
    Result, TaskFilter,
};

/// Submits one task and begins its first attempt.
async fn running(broker: &Handle, spec: TaskSpec) -> Result<(Tid, AttemptId)> {
    let owner = worker(broker).await?;
    let tid = submit(broker, spec).await?;
    let attempt_id = begin(broker, owner).await?;
    assert_eq!(
        attempt_id,
        AttemptId {
            tid,
            attempt: 1,
            owner
        }
    );
    Ok((tid, attempt_id))
}

fn is_again(outcome: CompletionOutcome) -> bool {
    matches!(outcome, CompletionOutcome::Retry(_))
}

/// Result, state and event in one step.
pub async fn success_completes(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let (tid, attempt_id) = running(broker, spec("task")).await?;
    let report = AttemptReport {
        value: Some(serde_json::json!({ "sum": 3 })),
        ..report(success())
    };
    let owner = view(broker, tid).await?.worker;
    let completion = Completion {
        attempt_id,
        report: report.clone(),
        stdout: b"out".to_vec(),
        stderr: Vec::new(),
    };
    assert_eq!(
        broker.complete(vec![completion]).await?,
        [CompletionOutcome::Finished(TaskState::Completed)]
    );
    let task = view(&store.reopen().await, tid).await?;
    assert_eq!(
        (task.state, task.attempt, task.worker),
        (TaskState::Completed, 1, owner)
    );
    assert!(!task.dead && task.finished_at.is_some());
    assert_eq!(task.report, Some(report));
    let events = broker.events(Some(0), Some(tid), 10, AT_ONCE).await?;
    let last = events.last().expect("it was created, at least");
    assert_eq!(
        (last.event, last.attempt, last.worker, &last.detail),
        (TaskEventKind::Completed, 1, owner, &None)
    );
    assert_eq!(events.len(), 4);
    Ok(())
}

/// A worker may say that it began and ended in one go.
pub async fn an_attempt_that_ran_is_logged_as_running(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    let tid = submit(broker, spec("task")).await?;
    end(broker, take(broker, owner).await?, failure()).await?;
    let steps = [
        TaskEventKind::Created,
        TaskEventKind::Spawning,
        TaskEventKind::Running,
        TaskEventKind::Failed,
    ];
    assert_eq!(kinds(broker, tid).await?, steps);
    Ok(())
}

/// Nothing completes that did not run.
pub async fn a_success_that_was_never_started_is_logged_as_running(
    store: &dyn Fixture,
) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    let tid = submit(broker, spec("task")).await?;
    let mut completion = super::support::completion(take(broker, owner).await?, success());
    completion.report.started_at = None;
    broker.complete(vec![completion]).await?;
    let steps = [
        TaskEventKind::Created,
        TaskEventKind::Spawning,
        TaskEventKind::Running,
        TaskEventKind::Completed,
    ];
    assert_eq!(kinds(broker, tid).await?, steps);
    Ok(())
}

/// A program that is not there never ran.
pub async fn an_attempt_that_never_ran_is_not_logged_as_running(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    let tid = submit(broker, spec("task")).await?;
    let mut completion = super::support::completion(
        take(broker, owner).await?,
        ExitStatus::NotFound {
            message: "nosuch: not found".into(),
        },
    );
    completion.report.started_at = None;
    assert_eq!(
        broker.complete(vec![completion]).await?,
        [CompletionOutcome::Finished(TaskState::Failed)]
    );
    assert_eq!(
        kinds(broker, tid).await?,
        [
            TaskEventKind::Created,
            TaskEventKind::Spawning,
            TaskEventKind::Failed
        ]
    );
    assert_eq!(
        last_detail(broker, tid).await?.as_deref(),
        Some("nosuch: not found")
    );
    Ok(())
}

/// In the words of the exit.
pub async fn a_failure_says_why(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let (tid, attempt_id) = running(broker, spec("task")).await?;
    assert_eq!(
        end(broker, attempt_id, failure()).await?,
        CompletionOutcome::Finished(TaskState::Failed)
    );
    assert_eq!(last_detail(broker, tid).await?, Some(failure().to_string()));
    Ok(())
}

/// As often as the spec allows.
pub async fn a_failed_attempt_is_followed_by_another(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let (tid, attempt_id) = running(broker, retrying(2, HumanDuration::default())).await?;
    let owner = view(broker, tid).await?.worker.expect("it is claimed");
    assert!(is_again(end(broker, attempt_id, failure()).await?));
    let task = view(broker, tid).await?;
    assert_eq!(
        (task.state, task.attempt, task.failures, task.losses),
        (TaskState::Created, 1, 1, 0)
    );
    assert!(task.report.is_none() && task.pid.is_none());
    assert_eq!(
        kinds(broker, tid).await?.last(),
        Some(&TaskEventKind::Retrying)
    );
    assert_eq!(last_detail(broker, tid).await?, Some(failure().to_string()));
    let second = begin(broker, owner).await?;
    assert_eq!(
        second,
        AttemptId {
            tid,
            attempt: 2,
            owner
        }
    );
    assert_eq!(
        end(broker, second, success()).await?,
        CompletionOutcome::Finished(TaskState::Completed)
    );
    assert_eq!(view(broker, tid).await?.failures, 1);
    Ok(())
}

/// The verdict says until when.
pub async fn the_next_attempt_waits_for_its_pause(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let (tid, attempt_id) = running(broker, retrying(2, HumanDuration::secs(3600))).await?;
    let owner = view(broker, tid).await?.worker.expect("it is claimed");
    let outcome = end(broker, attempt_id, failure()).await?;
    let CompletionOutcome::Retry(at) = outcome else {
        panic!("one more attempt is left: {outcome:?}")
    };
    assert!(at > Timestamp::now());
    assert_eq!(view(broker, tid).await?.run_at, Some(at));
    assert_eq!(broker.summary().await?.delayed, 1);
    assert!(claim(broker, owner, 1).await?.is_empty());
    Ok(())
}

/// That is what `keep` means.
pub async fn used_up_attempts_end_in_the_dead_letter_queue(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let (tid, attempt_id) = running(broker, retrying(2, HumanDuration::default())).await?;
    let owner = view(broker, tid).await?.worker.expect("it is claimed");
    end(broker, attempt_id, failure()).await?;
    let second = begin(broker, owner).await?;
    assert_eq!(
        end(broker, second, failure()).await?,
        CompletionOutcome::Finished(TaskState::Failed)
    );
    let task = view(broker, tid).await?;
    assert_eq!((task.dead, task.attempt, task.failures), (true, 2, 2));
    assert_eq!(broker.summary().await?.dead, 1);
    assert_eq!(task.report.map(|report| report.exit), Some(failure()));
    Ok(())
}

/// `clear` removes the message.
pub async fn clear_keeps_the_exhausted_out_of_the_dead_letter_queue(
    store: &dyn Fixture,
) -> Result<()> {
    let broker = store.broker();
    let (tid, attempt_id) = running(
        broker,
        TaskSpec {
            on_error: ReservedPolicy::Clear,
            ..spec("task")
        },
    )
    .await?;
    assert_eq!(
        end(broker, attempt_id, failure()).await?,
        CompletionOutcome::Finished(TaskState::Failed)
    );
    assert!(!view(broker, tid).await?.dead);
    assert_eq!(broker.summary().await?.dead, 0);
    Ok(())
}

/// `requeue` puts the message back.
pub async fn requeue_tries_the_exhausted_for_ever(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let spec = TaskSpec {
        on_error: ReservedPolicy::Requeue,
        ..retrying(1, HumanDuration::default())
    };
    let (tid, mut attempt_id) = running(broker, spec).await?;
    let owner = view(broker, tid).await?.worker.expect("it is claimed");
    for attempt in 2..6 {
        assert!(is_again(end(broker, attempt_id, failure()).await?));
        attempt_id = begin(broker, owner).await?;
        assert_eq!(attempt_id.attempt, attempt);
    }
    Ok(())
}

/// Not merely a failure.
pub async fn a_timeout_is_a_state_of_its_own(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let (tid, attempt_id) = running(broker, spec("task")).await?;
    assert_eq!(
        end(broker, attempt_id, ExitStatus::Timeout).await?,
        CompletionOutcome::Finished(TaskState::Timeout)
    );
    assert_eq!(
        kinds(broker, tid).await?.last(),
        Some(&TaskEventKind::Timeout)
    );
    assert!(view(broker, tid).await?.dead);
    Ok(())
}

/// Without trying again.
pub async fn a_stopped_attempt_cancels_its_task(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let (tid, attempt_id) = running(broker, retrying(5, HumanDuration::default())).await?;
    assert_eq!(
        end(broker, attempt_id, ExitStatus::Cancelled).await?,
        CompletionOutcome::Finished(TaskState::Cancelled)
    );
    let task = view(broker, tid).await?;
    assert_eq!((task.state, task.dead), (TaskState::Cancelled, false));
    assert_eq!(
        kinds(broker, tid).await?.last(),
        Some(&TaskEventKind::Cancelled)
    );
    Ok(())
}

/// In one step, and without being charged.
pub async fn a_stopped_attempt_goes_back_when_the_spec_says_so(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let (tid, attempt_id) = running(
        broker,
        TaskSpec {
            on_stop: ReservedPolicy::Requeue,
            ..spec("task")
        },
    )
    .await?;
    assert!(is_again(
        end(broker, attempt_id, ExitStatus::Cancelled).await?
    ));
    let task = view(broker, tid).await?;
    assert_eq!(
        (task.state, task.attempt, task.failures, task.losses),
        (TaskState::Created, 1, 0, 0)
    );
    assert_eq!(
        kinds(broker, tid).await?.last(),
        Some(&TaskEventKind::Released)
    );
    Ok(())
}

/// Whatever else the spec says.
pub async fn a_killed_attempt_kills_its_task(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let (tid, attempt_id) = running(
        broker,
        TaskSpec {
            on_stop: ReservedPolicy::Requeue,
            ..retrying(5, HumanDuration::default())
        },
    )
    .await?;
    assert_eq!(
        end(broker, attempt_id, ExitStatus::Killed).await?,
        CompletionOutcome::Finished(TaskState::Killed)
    );
    assert_eq!(
        kinds(broker, tid).await?.last(),
        Some(&TaskEventKind::Killed)
    );
    Ok(())
}

/// Refused, counted and logged; the first one holds.
pub async fn a_second_finish_is_stale(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let (tid, attempt_id) = running(broker, spec("task")).await?;
    end(broker, attempt_id, success()).await?;
    assert_eq!(
        end(broker, attempt_id, failure()).await?,
        CompletionOutcome::Stale
    );
    let task = view(broker, tid).await?;
    assert_eq!(
        (task.state, task.report.map(|report| report.exit)),
        (TaskState::Completed, Some(success()))
    );
    assert_eq!(broker.summary().await?.stale_writes, 1);
    assert_eq!(
        kinds(broker, tid).await?.last(),
        Some(&TaskEventKind::StaleWrite)
    );
    Ok(())
}

/// The latest attempt goes on undisturbed.
pub async fn a_finish_of_an_earlier_attempt_is_stale(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let (tid, first) = running(broker, spec("task")).await?;
    let owner = view(broker, tid).await?.worker.expect("it is claimed");
    release(broker, first).await?;
    let second = begin(broker, owner).await?;
    assert_eq!(
        end(broker, first, failure()).await?,
        CompletionOutcome::Stale
    );
    let events = broker.events(Some(0), Some(tid), 100, AT_ONCE).await?;
    let stale = events.last().expect("there are events");
    assert_eq!((stale.event, stale.attempt), (TaskEventKind::StaleWrite, 1));
    assert_eq!(view(broker, tid).await?.state, TaskState::Running);
    assert_eq!(
        end(broker, second, success()).await?,
        CompletionOutcome::Finished(TaskState::Completed)
    );
    Ok(())
}

/// A server that forgets a claim gives its number to another worker. Only the owner tells the two
/// attempts apart.
pub async fn a_write_of_another_worker_is_refused(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let (tid, attempt_id) = running(broker, spec("task")).await?;
    let other = AttemptId {
        owner: worker(broker).await?,
        ..attempt_id
    };
    assert_eq!(
        end(broker, other, success()).await?,
        CompletionOutcome::Stale
    );
    assert_eq!(
        end(broker, other, failure()).await?,
        CompletionOutcome::Stale
    );
    assert_eq!(release(broker, other).await?, CompletionOutcome::Stale);
    let chain = ChainRequest {
        attempt_id: other,
        tasks: vec![spec("chained")],
        offset: None,
    };
    assert!(
        matches!(broker.chain(chain).await, Err(Error::Superseded(refused)) if refused == other)
    );
    assert_eq!(broker.summary().await?.stale_writes, 4);
    broker.mark_paused(other, true).await?;
    broker
        .append_output(other, OutputStream::Stdout, b"forged".to_vec())
        .await?;
    assert!(
        broker
            .read_output(tid, attempt_id.attempt, OutputStream::Stdout, 0, 100)
            .await?
            .is_empty()
    );
    let task = view(broker, tid).await?;
    assert_eq!(
        (task.state, task.paused, task.worker),
        (TaskState::Running, false, Some(attempt_id.owner))
    );
    assert_eq!(
        end(broker, attempt_id, success()).await?,
        CompletionOutcome::Finished(TaskState::Completed)
    );
    Ok(())
}

/// It grows with each claim, whichever worker makes it.
pub async fn fencing_tokens_grow(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    submit_all(broker, vec![spec("a"), spec("b")]).await?;
    let mut last = 0;
    for _ in 0..3 {
        let owner = worker(broker).await?;
        for claim in claim(broker, owner, 2).await? {
            assert!(claim.fencing_token > last, "{claim:?} after {last}");
            last = claim.fencing_token;
            release(broker, claim.attempt_id).await?;
        }
    }
    Ok(())
}

/// Its record may have been purged. There is nothing to log it for.
pub async fn a_finish_of_an_unknown_task_is_stale(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let unknown = Tid::from_u64(1_500_000_000_000_000_000).expect("in the range of ids");
    assert_eq!(
        end(
            broker,
            AttemptId {
                tid: unknown,
                attempt: 1,
                owner: unknown
            },
            success()
        )
        .await?,
        CompletionOutcome::Stale
    );
    assert_eq!(broker.summary().await?.stale_writes, 1);
    assert!(broker.events(Some(0), None, 10, AT_ONCE).await?.is_empty());
    Ok(())
}

/// Each with its own.
pub async fn outcomes_keep_the_order_of_the_batch(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    submit_all(
        broker,
        vec![spec("a"), retrying(2, HumanDuration::default()), spec("c")],
    )
    .await?;
    let fences: Vec<_> = claim(broker, owner, 3)
        .await?
        .iter()
        .map(|claim| claim.attempt_id)
        .collect();
    broker
        .mark_started(
            fences
                .iter()
                .map(|attempt_id| AttemptStarted {
                    attempt_id: *attempt_id,
                    pid: None,
                })
                .collect(),
        )
        .await?;
    let late = AttemptId {
        attempt: 9,
        ..fences[0]
    };
    let batch = vec![
        completion(fences[0], success()),
        completion(late, success()),
        completion(fences[1], failure()),
        completion(fences[2], ExitStatus::Timeout),
    ];
    let verdicts = broker.complete(batch).await?;
    assert_eq!(
        verdicts[..2],
        [
            CompletionOutcome::Finished(TaskState::Completed),
            CompletionOutcome::Stale
        ]
    );
    assert!(is_again(verdicts[2]));
    assert_eq!(verdicts[3], CompletionOutcome::Finished(TaskState::Timeout));
    Ok(())
}

/// No worker would ever read them.
pub async fn unread_commands_are_deleted_with_the_task(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let (tid, attempt_id) = running(broker, spec("task")).await?;
    broker
        .control(tid, ControlMessage::new(ControlCommand::Stop))
        .await?;
    assert_eq!(bodies(broker, &ctrl_in(tid)).await?, ["STOP"]);
    assert_eq!(
        end(broker, attempt_id, success()).await?,
        CompletionOutcome::Finished(TaskState::Completed)
    );
    assert!(bodies(broker, &ctrl_in(tid)).await?.is_empty());
    Ok(())
}

/// Nothing that can be asked for changes it.
pub async fn a_terminal_state_is_final(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let (tid, attempt_id) = running(broker, spec("task")).await?;
    let owner = view(broker, tid).await?.worker.expect("it is claimed");
    end(broker, attempt_id, failure()).await?;
    let before = view(broker, tid).await?;
    assert_eq!(release(broker, attempt_id).await?, CompletionOutcome::Stale);
    broker
        .mark_started(vec![AttemptStarted {
            attempt_id,
            pid: Some(1),
        }])
        .await?;
    for word in [
        ControlCommand::Stop,
        ControlCommand::Kill,
        ControlCommand::Pause,
        ControlCommand::Resume,
        ControlCommand::Ping,
    ] {
        let refused = broker.control(tid, ControlMessage::new(word)).await;
        assert!(
            matches!(refused, Err(Error::Finished(_, TaskState::Failed))),
            "{refused:?}"
        );
    }
    broker.reclaim().await?;
    broker.deregister(owner, None).await?;
    assert_eq!(view(broker, tid).await?, before);
    let terminal = kinds(broker, tid)
        .await?
        .into_iter()
        .filter(|kind| kind.is_terminal())
        .count();
    assert_eq!(terminal, 1);
    assert_eq!(broker.tasks(TaskFilter::default()).await?.len(), 1);
    Ok(())
}
