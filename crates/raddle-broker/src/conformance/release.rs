//! Tasks given back unfinished.

use raddle_core::{EventKind, State};

use super::{Fixture, support::*};
use crate::{
    Result,
    request::{ClaimRequest, Verdict},
};

/// Only the attempt's number is spent.
pub async fn a_released_task_goes_back_uncharged(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    let tid = submit(broker, spec("task")).await?;
    let fence = begin(broker, owner).await?;
    assert!(matches!(release(broker, fence).await?, Verdict::Again(_)));
    let task = view(broker, tid).await?;
    assert_eq!((task.state, task.attempt, task.failures, task.losses), (State::Created, 1, 0, 0));
    assert!(task.run_at.is_none() && task.pid.is_none() && task.claimed_at.is_none());
    let events = broker.events(Some(0), Some(tid), 10, AT_ONCE).await?;
    let last = events.last().expect("there are events");
    assert_eq!((last.event, last.worker, last.detail.as_deref()), (EventKind::Released, Some(owner), Some("no time")));
    assert_eq!(take(broker, owner).await?.attempt, 2);
    Ok(())
}

/// Before those that were submitted after it.
pub async fn a_released_task_keeps_its_place(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    submit_all(broker, vec![spec("first"), spec("second")]).await?;
    let fence = take(broker, owner).await?;
    release(broker, fence).await?;
    assert_eq!(claim_names(broker, ClaimRequest { max: 5, ..request(owner) }).await?, ["first", "second"]);
    Ok(())
}

/// Refused, counted and logged.
pub async fn a_late_release_is_stale(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    let tid = submit(broker, spec("task")).await?;
    let first = take(broker, owner).await?;
    release(broker, first).await?;
    assert_eq!(release(broker, first).await?, Verdict::Stale);
    begin(broker, owner).await?;
    assert_eq!(release(broker, first).await?, Verdict::Stale);
    assert_eq!(view(broker, tid).await?.state, State::Running);
    assert_eq!(broker.summary().await?.stale_writes, 2);
    assert_eq!(kinds(broker, tid).await?.iter().filter(|kind| **kind == EventKind::StaleWrite).count(), 2);
    Ok(())
}
