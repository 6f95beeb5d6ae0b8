//! The event log.

use std::time::{Duration, Instant};

use raddle_model::{TaskEventKind, TaskSpec, Tid};

use super::{Fixture, Handle, support::*};
use crate::{AttemptStarted, ClaimRequest, Result};

/// It is not stored twice, and stands where it belongs among the others.
pub async fn created_is_the_task_itself(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    let first = submit(broker, spec("first")).await?;
    take(broker, owner).await?;
    let second = submit(broker, spec("second")).await?;
    let events = broker
        .events(Some(owner.as_u64()), None, 100, AT_ONCE)
        .await?;
    let seen: Vec<_> = events
        .iter()
        .map(|event| (event.tid, event.event))
        .collect();
    let expected = [
        (owner, TaskEventKind::Running),
        (first, TaskEventKind::Created),
        (first, TaskEventKind::Spawning),
        (second, TaskEventKind::Created),
    ];
    assert_eq!(seen, expected);
    assert_eq!(
        (events[1].id, events[1].attempt, events[1].worker),
        (first, 0, None)
    );
    Ok(())
}

/// A reader that goes on from the last id misses none and sees none twice.
pub async fn events_come_in_order_and_after_an_id(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    submit_all(broker, vec![spec("task"); 5]).await?;
    for _ in 0..5 {
        end(broker, begin(broker, owner).await?, success()).await?;
    }
    let all = broker.events(Some(0), None, 1000, AT_ONCE).await?;
    assert_eq!(all.len(), 2 + 5 * 4);
    assert!(all.is_sorted_by(|a, b| a.id < b.id));
    let (mut read, mut after) = (Vec::new(), 0);
    loop {
        let page = broker.events(Some(after), None, 3, AT_ONCE).await?;
        let Some(last) = page.last() else { break };
        after = last.id.as_u64();
        read.extend(page);
    }
    assert_eq!(read, all);
    Ok(())
}

/// And of no other.
pub async fn events_of_one_task(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    let tids = submit_all(broker, vec![spec("a"), spec("b")]).await?;
    for _ in &tids {
        end(broker, begin(broker, owner).await?, success()).await?;
    }
    let steps = [
        TaskEventKind::Created,
        TaskEventKind::Spawning,
        TaskEventKind::Running,
        TaskEventKind::Completed,
    ];
    for tid in tids {
        let events = broker.events(Some(0), Some(tid), 100, AT_ONCE).await?;
        assert!(events.iter().all(|event| event.tid == tid));
        assert_eq!(
            events.iter().map(|event| event.event).collect::<Vec<_>>(),
            steps
        );
        let later = broker
            .events(Some(events[1].id.as_u64()), Some(tid), 100, AT_ONCE)
            .await?;
        assert_eq!(later, events[2..]);
    }
    Ok(())
}

/// The oldest of them.
pub async fn at_most_as_many_as_asked_for(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    let tid = submit(broker, spec("task")).await?;
    end(broker, begin(broker, owner).await?, success()).await?;
    let first = broker.events(Some(0), Some(tid), 2, AT_ONCE).await?;
    assert_eq!(
        first.iter().map(|event| event.event).collect::<Vec<_>>(),
        [TaskEventKind::Created, TaskEventKind::Spawning]
    );
    assert_eq!(broker.events(Some(0), None, 3, AT_ONCE).await?.len(), 3);
    Ok(())
}

/// Not even that it was created.
pub async fn an_unknown_task_has_no_events(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    submit(broker, spec("task")).await?;
    let unknown = Tid::from_u64(1_500_000_000_000_000_000).expect("in the range of ids");
    let (began, wait) = (Instant::now(), Duration::from_millis(50));
    let events = broker.events(Some(0), Some(unknown), 10, wait).await?;
    assert!(events.is_empty(), "{events:?}");
    assert!(began.elapsed() >= wait);
    Ok(())
}

/// Submits a task that ends long after it was submitted: 12,000 events of others come in between.
pub(super) async fn finish_behind_many(broker: &Handle) -> Result<Tid> {
    let owner = worker(broker).await?;
    let tid = submit(
        broker,
        TaskSpec {
            priority: 0,
            ..spec("patient")
        },
    )
    .await?;
    submit_all(broker, vec![spec("busy"); 4000]).await?;
    let claims = broker
        .claim(ClaimRequest {
            max: 4000,
            ..request(owner)
        })
        .await?;
    assert_eq!(claims.len(), 4000);
    broker
        .mark_started(
            claims
                .iter()
                .map(|claim| AttemptStarted {
                    attempt_id: claim.attempt_id,
                    pid: None,
                })
                .collect(),
        )
        .await?;
    broker
        .complete(
            claims
                .iter()
                .map(|claim| completion(claim.attempt_id, success()))
                .collect(),
        )
        .await?;
    end(broker, begin(broker, owner).await?, success()).await?;
    Ok(tid)
}

/// At once, however much happened in between.
pub async fn events_of_one_task_are_found_behind_those_of_many(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let tid = finish_behind_many(broker).await?;
    let events = broker
        .events(Some(tid.as_u64()), Some(tid), 10, AT_ONCE)
        .await?;
    let steps: Vec<_> = events.iter().map(|event| event.event).collect();
    assert_eq!(
        steps,
        [
            TaskEventKind::Spawning,
            TaskEventKind::Running,
            TaskEventKind::Completed
        ]
    );
    Ok(())
}

/// Whatever it is about, and whatever else has an id.
pub async fn the_last_event_is_known(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    assert_eq!(broker.last_event().await?, 0);
    let owner = worker(broker).await?;
    let last = async || -> Result<u64> {
        let events = broker.events(Some(0), None, 1000, AT_ONCE).await?;
        Ok(events.last().map_or(0, |event| event.id.as_u64()))
    };
    assert_eq!(broker.last_event().await?, last().await?);
    let tids = submit_all(broker, vec![spec("task"); 3]).await?;
    assert_eq!(broker.last_event().await?, tids[2].as_u64());
    let claims = broker
        .claim(ClaimRequest {
            max: 3,
            ..request(owner)
        })
        .await?;
    assert_eq!(broker.last_event().await?, last().await?);
    broker.put(free("jobs"), vec!["x".into()]).await?;
    assert_eq!(
        broker.last_event().await?,
        last().await?,
        "a message is no event"
    );
    broker
        .complete(
            claims
                .iter()
                .map(|claim| completion(claim.attempt_id, success()))
                .collect(),
        )
        .await?;
    assert_eq!(store.reopen().await.last_event().await?, last().await?);
    assert!(
        broker
            .events(Some(broker.last_event().await?), None, 1, AT_ONCE)
            .await?
            .is_empty()
    );
    Ok(())
}
