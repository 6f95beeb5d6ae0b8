//! Control words to tasks that wait and to tasks that run.

use raddle_model::{
    ControlCommand, ControlMessage, ExitStatus, HumanDuration, TaskEventKind, TaskSpec, TaskState,
    control::ControlReply, spec::ReservedPolicy,
};

use super::{Fixture, Handle, support::*};
use crate::{ClaimRequest, CompletionOutcome, ControlDelivery, DeliveryOutcome, Error, Result};

async fn send_command(
    broker: &Handle,
    tid: raddle_model::Tid,
    word: ControlCommand,
) -> Result<DeliveryOutcome> {
    broker.control(tid, ControlMessage::new(word)).await
}

/// No worker runs it, so the broker applies the command.
pub async fn stop_cancels_a_waiting_task(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    let ready = submit(broker, spec("ready")).await?;
    let later = submit(
        broker,
        TaskSpec {
            delay: Some(HumanDuration::secs(60)),
            ..spec("later")
        },
    )
    .await?;
    let held = submit(broker, spec("held")).await?;
    send_command(broker, held, ControlCommand::Pause).await?;
    for tid in [ready, later, held] {
        assert_eq!(
            send_command(broker, tid, ControlCommand::Stop).await?,
            DeliveryOutcome::Applied(TaskState::Cancelled)
        );
        let task = view(broker, tid).await?;
        assert_eq!(
            (task.state, task.paused, task.dead),
            (TaskState::Cancelled, false, false)
        );
        assert_eq!(
            task.report.map(|report| report.exit),
            Some(ExitStatus::Cancelled)
        );
        assert_eq!(
            kinds(broker, tid).await?.last(),
            Some(&TaskEventKind::Cancelled)
        );
    }
    assert!(claim(broker, owner, 9).await?.is_empty());
    let summary = broker.summary().await?;
    assert_eq!(
        (summary.delayed, summary.paused, summary.ready.len()),
        (0, 0, 0)
    );
    Ok(())
}

/// It waits already.
pub async fn stop_keeps_a_waiting_task_with_on_stop_requeue(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    let by_spec = submit(
        broker,
        TaskSpec {
            on_stop: ReservedPolicy::Requeue,
            ..spec("task")
        },
    )
    .await?;
    assert_eq!(
        send_command(broker, by_spec, ControlCommand::Stop).await?,
        DeliveryOutcome::Applied(TaskState::Created)
    );
    let by_word = submit(broker, spec("task")).await?;
    let word = ControlMessage {
        requeue: true,
        ..ControlMessage::new(ControlCommand::Stop)
    };
    assert_eq!(
        broker.control(by_word, word).await?,
        DeliveryOutcome::Applied(TaskState::Created)
    );
    assert_eq!(claim(broker, owner, 9).await?.len(), 2);
    Ok(())
}

/// Whatever the spec says.
pub async fn kill_ends_a_waiting_task(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let tid = submit(
        broker,
        TaskSpec {
            on_stop: ReservedPolicy::Requeue,
            ..spec("task")
        },
    )
    .await?;
    assert_eq!(
        send_command(broker, tid, ControlCommand::Kill).await?,
        DeliveryOutcome::Applied(TaskState::Killed)
    );
    let task = view(broker, tid).await?;
    assert_eq!(
        (task.state, task.report.map(|report| report.exit)),
        (TaskState::Killed, Some(ExitStatus::Killed))
    );
    assert_eq!(
        kinds(broker, tid).await?,
        [TaskEventKind::Created, TaskEventKind::Killed]
    );
    Ok(())
}

/// Held back, and in its old place again.
pub async fn pause_holds_and_resume_lets_go(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    let tid = submit(broker, spec("first")).await?;
    assert_eq!(
        send_command(broker, tid, ControlCommand::Pause).await?,
        DeliveryOutcome::Applied(TaskState::Created)
    );
    assert!(view(broker, tid).await?.paused);
    assert!(claim(broker, owner, 1).await?.is_empty());
    assert_eq!(broker.summary().await?.paused, 1);
    submit(broker, spec("second")).await?;
    assert_eq!(
        send_command(broker, tid, ControlCommand::Resume).await?,
        DeliveryOutcome::Applied(TaskState::Created)
    );
    assert!(!view(broker, tid).await?.paused);
    assert_eq!(
        kinds(broker, tid).await?,
        [
            TaskEventKind::Created,
            TaskEventKind::Paused,
            TaskEventKind::Resumed
        ]
    );
    assert_eq!(
        claim_names(
            broker,
            ClaimRequest {
                max: 5,
                ..request(owner)
            }
        )
        .await?,
        ["first", "second"]
    );
    Ok(())
}

/// It is not made to run earlier by having been held.
pub async fn a_paused_task_keeps_its_time(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    let tid = submit(
        broker,
        TaskSpec {
            delay: Some(HumanDuration::secs(3600)),
            ..spec("later")
        },
    )
    .await?;
    let run_at = view(broker, tid).await?.run_at;
    send_command(broker, tid, ControlCommand::Pause).await?;
    assert_eq!(view(broker, tid).await?.run_at, run_at);
    send_command(broker, tid, ControlCommand::Resume).await?;
    assert_eq!(view(broker, tid).await?.run_at, run_at);
    assert!(claim(broker, owner, 1).await?.is_empty());
    assert_eq!(broker.summary().await?.delayed, 1);
    Ok(())
}

/// At once, with the sender's id.
pub async fn ping_and_status_are_answered(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let tid = submit(broker, spec("task")).await?;
    for (word, id) in [
        (ControlCommand::Ping, None),
        (ControlCommand::Status, Some("r-1")),
    ] {
        let message = ControlMessage {
            request_id: id.map(String::from),
            ..ControlMessage::new(word)
        };
        assert_eq!(
            broker.control(tid, message).await?,
            DeliveryOutcome::Applied(TaskState::Created)
        );
        let answers = broker.take(ctrl_out(tid), 10, AT_ONCE).await?;
        assert_eq!(answers.len(), 1);
        let answer: ControlReply =
            serde_json::from_str(&answers[0].body).expect("replies are JSON");
        assert_eq!(
            (
                answer.command,
                answer.request_id.as_deref(),
                answer.status.as_str()
            ),
            (word, id, "ok")
        );
        assert_eq!(answer.state, "created");
    }
    Ok(())
}

/// One event each.
pub async fn pausing_twice_is_pausing_once(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let tid = submit(broker, spec("task")).await?;
    for word in [
        ControlCommand::Resume,
        ControlCommand::Pause,
        ControlCommand::Pause,
        ControlCommand::Resume,
        ControlCommand::Resume,
    ] {
        assert_eq!(
            send_command(broker, tid, word).await?,
            DeliveryOutcome::Applied(TaskState::Created)
        );
    }
    assert_eq!(
        kinds(broker, tid).await?,
        [
            TaskEventKind::Created,
            TaskEventKind::Paused,
            TaskEventKind::Resumed
        ]
    );
    Ok(())
}

/// There is no such task.
pub async fn refuses_commands_to_an_unknown_task(store: &dyn Fixture) -> Result<()> {
    let unknown =
        raddle_model::Tid::from_u64(1_500_000_000_000_000_000).expect("in the range of ids");
    let refused = send_command(store.broker(), unknown, ControlCommand::Ping).await;
    assert!(
        matches!(refused, Err(Error::NotFound(tid)) if tid == unknown),
        "{refused:?}"
    );
    Ok(())
}

/// With the state that it ended in.
pub async fn refuses_commands_to_a_finished_task(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let tid = submit(broker, spec("task")).await?;
    send_command(broker, tid, ControlCommand::Kill).await?;
    let refused = send_command(broker, tid, ControlCommand::Stop).await;
    assert!(
        matches!(refused, Err(Error::Finished(t, TaskState::Killed)) if t == tid),
        "{refused:?}"
    );
    assert!(queue_sizes(broker).await?.is_empty());
    Ok(())
}

/// As they were written, in order, and once.
pub async fn commands_to_an_attempt_reach_only_its_worker(store: &dyn Fixture) -> Result<()> {
    let (broker, other) = (store.broker(), store.reopen().await);
    let (owner, bystander) = (worker(broker).await?, worker(broker).await?);
    let tid = submit(broker, spec("task")).await?;
    let second = submit(broker, spec("second")).await?;
    begin(broker, owner).await?;
    take(broker, bystander).await?;
    let status = ControlMessage {
        request_id: Some("r-1".into()),
        ..ControlMessage::new(ControlCommand::Status)
    };
    assert_eq!(
        send_command(&other, tid, ControlCommand::Pause).await?,
        DeliveryOutcome::Sent
    );
    assert_eq!(
        other.control(tid, status.clone()).await?,
        DeliveryOutcome::Sent
    );
    assert_eq!(
        send_command(&other, second, ControlCommand::Ping).await?,
        DeliveryOutcome::Sent
    );
    let words = broker.recv_commands(owner, SOON).await?;
    let expected = ["PAUSE".into(), status.to_text()].map(|body| ControlDelivery { tid, body });
    assert_eq!(words, expected);
    assert!(broker.recv_commands(owner, AT_ONCE).await?.is_empty());
    assert_eq!(
        broker.recv_commands(bystander, SOON).await?,
        [ControlDelivery {
            tid: second,
            body: "PING".into()
        }]
    );
    assert_eq!(view(broker, tid).await?.state, TaskState::Running);
    Ok(())
}

/// A command that did not reach the attempt applies to the task.
pub async fn unread_commands_apply_to_a_released_task(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    let tid = submit(broker, spec("task")).await?;
    let attempt_id = begin(broker, owner).await?;
    send_command(broker, tid, ControlCommand::Pause).await?;
    assert!(matches!(
        release(broker, attempt_id).await?,
        CompletionOutcome::Retry(_)
    ));
    assert!(view(broker, tid).await?.paused);
    assert!(claim(broker, owner, 1).await?.is_empty());
    assert!(bodies(broker, &ctrl_in(tid)).await?.is_empty());
    send_command(broker, tid, ControlCommand::Resume).await?;
    let attempt_id = begin(broker, owner).await?;
    send_command(broker, tid, ControlCommand::Kill).await?;
    assert_eq!(
        release(broker, attempt_id).await?,
        CompletionOutcome::Finished(TaskState::Killed)
    );
    assert_eq!(view(broker, tid).await?.state, TaskState::Killed);
    Ok(())
}

/// Also when another attempt was to follow.
pub async fn unread_commands_apply_to_a_retried_task(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    let tid = submit(broker, retrying(5, HumanDuration::secs(60))).await?;
    let attempt_id = begin(broker, owner).await?;
    send_command(broker, tid, ControlCommand::Stop).await?;
    assert_eq!(
        end(broker, attempt_id, failure()).await?,
        CompletionOutcome::Finished(TaskState::Cancelled)
    );
    let steps = kinds(broker, tid).await?;
    assert_eq!(
        steps[3..],
        [TaskEventKind::Retrying, TaskEventKind::Cancelled]
    );
    assert_eq!(broker.summary().await?.delayed, 0);
    Ok(())
}

/// It does not block the next message.
pub async fn logs_and_skips_malformed_commands(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    let tid = submit(broker, spec("task")).await?;
    let attempt_id = begin(broker, owner).await?;
    broker.put(ctrl_in(tid), vec!["ATTENTION".into()]).await?;
    send_command(broker, tid, ControlCommand::Pause).await?;
    release(broker, attempt_id).await?;
    let steps = kinds(broker, tid).await?;
    assert_eq!(
        steps[3..],
        [
            TaskEventKind::Released,
            TaskEventKind::ControlIgnored,
            TaskEventKind::Paused
        ]
    );
    assert!(view(broker, tid).await?.paused);
    Ok(())
}

/// Its worker may not say so anywhere that its sender looks at.
pub async fn an_ignored_message_to_an_attempt_is_an_event(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    let tid = submit(broker, spec("task")).await?;
    begin(broker, owner).await?;
    broker.put(ctrl_in(tid), vec!["ATTENTION".into()]).await?;
    send_command(broker, tid, ControlCommand::Kill).await?;
    let delivered = broker.recv_commands(owner, SOON).await?;
    assert_eq!(
        delivered,
        ["ATTENTION", "KILL"].map(|body| ControlDelivery {
            tid,
            body: body.into()
        })
    );
    let events = broker.events(Some(0), Some(tid), 100, AT_ONCE).await?;
    let ignored = events.last().expect("the task has events");
    assert_eq!(
        (ignored.event, ignored.attempt),
        (TaskEventKind::ControlIgnored, 1)
    );
    assert!(
        ignored
            .detail
            .as_deref()
            .is_some_and(|why| why.contains("RESUME")),
        "{ignored:?}"
    );
    Ok(())
}

/// It is its worker that holds it; the broker shows it.
pub async fn an_attempt_that_stands_still_shows_as_paused(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    let tid = submit(broker, spec("task")).await?;
    let attempt_id = begin(broker, owner).await?;
    for paused in [true, true, false, false, true] {
        broker.mark_paused(attempt_id, paused).await?;
        let task = view(&store.reopen().await, tid).await?;
        assert_eq!((task.state, task.paused), (TaskState::Running, paused));
    }
    let steps = kinds(broker, tid).await?;
    assert_eq!(
        steps[3..],
        [
            TaskEventKind::Paused,
            TaskEventKind::Resumed,
            TaskEventKind::Paused
        ]
    );
    broker.mark_paused(attempt_id, false).await?;
    release(broker, attempt_id).await?;
    assert!(!view(broker, tid).await?.paused);
    broker.mark_paused(attempt_id, true).await?;
    let second = begin(broker, owner).await?;
    broker.mark_paused(attempt_id, true).await?;
    assert!(
        !view(broker, tid).await?.paused,
        "a late attempt is passed over"
    );
    assert_eq!(
        end(broker, second, success()).await?,
        CompletionOutcome::Finished(TaskState::Completed)
    );
    broker.mark_paused(second, true).await?;
    assert!(!view(broker, tid).await?.paused);
    assert_eq!(broker.summary().await?.stale_writes, 0);
    Ok(())
}

/// The user who paused it has not resumed it: it stays paused after a release, the loss of its
/// worker or a failure.
pub async fn a_pause_outlives_its_attempt(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    for way in ["released", "failed", "lost", "lost before it began"] {
        let tid = submit(broker, retrying(5, HumanDuration::millis(20))).await?;
        let first = if way.starts_with("lost") {
            mortal(broker).await?
        } else {
            owner
        };
        let attempt_id = if way == "lost before it began" {
            take(broker, first).await?
        } else {
            begin(broker, first).await?
        };
        broker.mark_paused(attempt_id, true).await?;
        let outcome = match way {
            "released" => release(broker, attempt_id).await?,
            "failed" => end(broker, attempt_id, failure()).await?,
            _ => {
                outlive(broker, first).await?;
                broker.reclaim().await?[0].outcome
            }
        };
        assert!(
            matches!(outcome, CompletionOutcome::Retry(_)),
            "{way}: {outcome:?}"
        );
        let task = view(&store.reopen().await, tid).await?;
        assert_eq!(
            (task.state, task.paused),
            (TaskState::Created, true),
            "{way}"
        );
        assert_eq!(broker.summary().await?.paused, 1, "{way}");
        assert!(
            broker
                .claim(ClaimRequest {
                    wait: std::time::Duration::from_millis(60),
                    ..request(owner)
                })
                .await?
                .is_empty()
        );
        assert_eq!(
            send_command(broker, tid, ControlCommand::Resume).await?,
            DeliveryOutcome::Applied(TaskState::Created)
        );
        assert_eq!(
            kinds(broker, tid).await?.last(),
            Some(&TaskEventKind::Resumed),
            "{way}"
        );
        let again = take(broker, owner).await?;
        assert_eq!((again.tid, again.attempt), (tid, 2), "{way}");
        assert!(!view(broker, tid).await?.paused, "{way}");
        end(broker, again, success()).await?;
    }
    Ok(())
}

/// The last command counts, also if no attempt was there to apply it.
pub async fn a_pause_that_was_taken_back_in_time_does_not(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    let tid = submit(broker, spec("task")).await?;
    let attempt_id = begin(broker, owner).await?;
    broker.mark_paused(attempt_id, true).await?;
    send_command(broker, tid, ControlCommand::Resume).await?;
    release(broker, attempt_id).await?;
    assert!(!view(broker, tid).await?.paused);
    assert_eq!(take(broker, owner).await?.tid, tid);
    Ok(())
}
