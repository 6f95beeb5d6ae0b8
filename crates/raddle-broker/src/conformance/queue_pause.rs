//! Paused queues.

use std::time::Duration;

use raddle_model::{
    CapSet, ControlCommand, ControlMessage, ExitStatus, HumanDuration, TaskSpec, TaskState,
};

use super::{Fixture, Handle, support::*};
use crate::{ClaimRequest, Error, NewTask, Result, SubmitAndClaim, WaitingRequest};

async fn is_paused(broker: &Handle) -> Result<bool> {
    let summary = broker.summary().await?;
    Ok(summary
        .queues
        .get("default")
        .is_some_and(|queue| queue.is_paused))
}

async fn count_waiting(broker: &Handle) -> Result<u64> {
    let request = WaitingRequest {
        caps: CapSet::new(),
        queues: vec!["default".into()],
        before: None,
        max: 100,
        wait: AT_ONCE,
    };
    broker.count_waiting(request).await
}

/// On all handles, until it is resumed.
pub async fn a_paused_queue_takes_tasks_and_gives_none(store: &dyn Fixture) -> Result<()> {
    let (broker, other) = (store.broker(), store.reopen().await);
    let owner = worker(broker).await?;
    submit(broker, spec("before")).await?;
    assert!(broker.set_queue_paused("default".into(), true).await?);
    assert!(!other.set_queue_paused("default".into(), true).await?);
    let tid = submit(broker, spec("after")).await?;
    for broker in [broker, &other] {
        assert!(claim(broker, owner, 10).await?.is_empty());
        assert_eq!(count_waiting(broker).await?, 0);
        assert!(is_paused(broker).await?);
        assert_eq!(broker.summary().await?.queues["default"].ready, 2);
    }
    let only = ClaimRequest {
        only: Some(tid),
        ..request(owner)
    };
    assert!(broker.claim(only).await?.is_empty());
    assert!(other.set_queue_paused("default".into(), false).await?);
    assert!(!broker.set_queue_paused("default".into(), false).await?);
    assert!(!is_paused(broker).await?);
    assert_eq!(count_waiting(broker).await?, 2);
    assert_eq!(claim(broker, owner, 10).await?.len(), 2);
    Ok(())
}

/// Other queues are not concerned, and a queue without tasks can be paused before its first.
pub async fn only_the_named_queue_is_paused(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    broker.set_queue_paused("mail".into(), true).await?;
    submit(broker, spec("task")).await?;
    assert_eq!(claim(broker, owner, 10).await?.len(), 1);
    let mail = TaskSpec {
        queue: "mail".into(),
        ..spec("mail")
    };
    submit(broker, mail).await?;
    let both = ClaimRequest {
        queues: vec!["default".into(), "mail".into()],
        ..request(owner)
    };
    assert!(broker.claim(both).await?.is_empty());
    assert!(broker.summary().await?.queues["mail"].is_paused);
    let refused = broker.set_queue_paused("no queue".into(), true).await;
    assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    Ok(())
}

/// A claim that waits gets its task when the queue is resumed, and not before.
pub async fn a_resumed_queue_wakes_a_claim(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    broker.set_queue_paused("default".into(), true).await?;
    let tid = submit(broker, spec("task")).await?;
    let other = store.reopen().await;
    let waiting = tokio::spawn(async move { take(&other, owner).await });
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!waiting.is_finished());
    broker.set_queue_paused("default".into(), false).await?;
    assert_eq!(waiting.await.expect("it does not panic")?.tid, tid);
    Ok(())
}

/// As if the task were delayed.
pub async fn a_task_for_its_submitter_waits_too(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    broker.set_queue_paused("default".into(), true).await?;
    let outcome = broker
        .submit_and_claim(SubmitAndClaim {
            task: NewTask::new(spec("task")),
            worker: info("run"),
            lease: TTL,
        })
        .await?;
    assert!(outcome.claim.is_none());
    let owner = outcome.worker.expect("it is registered");
    broker.set_queue_paused("default".into(), false).await?;
    let only = ClaimRequest {
        only: Some(outcome.submitted.tid()),
        wait: SOON,
        ..request(owner)
    };
    assert_eq!(broker.claim(only).await?.len(), 1);
    Ok(())
}

/// Claimed tasks go on, and what is given back waits.
pub async fn running_tasks_of_a_paused_queue_go_on(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    let retried = TaskSpec {
        name: Some("retried".into()),
        ..retrying(2, HumanDuration::default())
    };
    submit_all(broker, vec![retried, spec("ends"), spec("stopped")]).await?;
    let (first, second) = (begin(broker, owner).await?, begin(broker, owner).await?);
    broker.set_queue_paused("default".into(), true).await?;
    end(broker, first, failure()).await?;
    end(broker, second, ExitStatus::Code { code: 0 }).await?;
    assert_eq!(view(broker, first.tid).await?.state, TaskState::Created);
    assert_eq!(view(broker, second.tid).await?.state, TaskState::Completed);
    assert!(claim(broker, owner, 10).await?.is_empty());
    // Waiting tasks are controlled as ever.
    let stop = ControlMessage::new(ControlCommand::Stop);
    broker.control(first.tid, stop).await?;
    assert_eq!(view(broker, first.tid).await?.state, TaskState::Cancelled);
    Ok(())
}
