//! Tasks given back unfinished.

use raddle_model::{TaskEventKind, TaskState};

use super::{Fixture, support::*};
use crate::{ClaimRequest, CompletionOutcome, Result};

/// Only the attempt's number is spent.
pub async fn a_released_task_goes_back_uncharged(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    let tid = submit(broker, spec("task")).await?;
    let attempt_id = begin(broker, owner).await?;
    assert!(matches!(
        release(broker, attempt_id).await?,
        CompletionOutcome::Retry(_)
    ));
    let task = view(broker, tid).await?;
    assert_eq!(
        (task.state, task.attempt, task.failures, task.losses),
        (TaskState::Created, 1, 0, 0)
    );
    assert!(task.run_at.is_none() && task.pid.is_none() && task.claimed_at.is_none());
    let events = broker.events(Some(0), Some(tid), 10, AT_ONCE).await?;
    let last = events.last().expect("there are events");
    assert_eq!(
        (last.event, last.worker, last.detail.as_deref()),
        (TaskEventKind::Released, Some(owner), Some("no time"))
    );
    assert_eq!(take(broker, owner).await?.attempt, 2);
    Ok(())
}

/// Before those that were submitted after it.
pub async fn a_released_task_keeps_its_place(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    submit_all(broker, vec![spec("first"), spec("second")]).await?;
    let attempt_id = take(broker, owner).await?;
    release(broker, attempt_id).await?;
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

/// Refused, counted and logged.
pub async fn a_late_release_is_stale(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    let tid = submit(broker, spec("task")).await?;
    let first = take(broker, owner).await?;
    release(broker, first).await?;
    assert_eq!(release(broker, first).await?, CompletionOutcome::Stale);
    begin(broker, owner).await?;
    assert_eq!(release(broker, first).await?, CompletionOutcome::Stale);
    assert_eq!(view(broker, tid).await?.state, TaskState::Running);
    assert_eq!(broker.summary().await?.stale_writes, 2);
    assert_eq!(
        kinds(broker, tid)
            .await?
            .iter()
            .filter(|kind| **kind == TaskEventKind::StaleWrite)
            .count(),
        2
    );
    Ok(())
}
