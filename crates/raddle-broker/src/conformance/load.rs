//! Many at once.

use std::{collections::BTreeSet, time::Duration};

use raddle_model::Tid;
use tokio::task::JoinSet;

use super::{Fixture, support::*};
use crate::{AttemptId, ClaimRequest, Result, TaskFilter};

const TASKS: usize = 2000;

/// Each task is claimed exactly once.
pub async fn eight_claimers_share_two_thousand_tasks(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let mut claimers: JoinSet<Result<Vec<AttemptId>>> = JoinSet::new();
    for n in 0..8 {
        let handle = if n % 2 == 0 {
            broker.clone()
        } else {
            store.reopen().await
        };
        let owner = worker(&handle).await?;
        claimers.spawn(async move {
            let mut mine = Vec::new();
            // No task for this long means that there are no more: tasks come faster than that.
            let patient = ClaimRequest {
                max: 1 + n,
                wait: Duration::from_secs(3),
                ..request(owner)
            };
            loop {
                let claims = handle.claim(patient.clone()).await?;
                if claims.is_empty() {
                    return Ok(mine);
                }
                handle
                    .complete(
                        claims
                            .iter()
                            .map(|claim| completion(claim.attempt_id, success()))
                            .collect(),
                    )
                    .await?;
                mine.extend(claims.into_iter().map(|claim| claim.attempt_id));
            }
        });
    }
    let mut submitted = BTreeSet::new();
    for _ in 0..TASKS / 100 {
        submitted.extend(submit_all(broker, vec![spec("task"); 100]).await?);
    }
    let mut claimed = Vec::new();
    while let Some(mine) = claimers.join_next().await {
        claimed.extend(mine.expect("claimers do not panic")?);
    }
    assert_eq!(claimed.len(), TASKS);
    assert!(claimed.iter().all(|attempt_id| attempt_id.attempt == 1));
    assert_eq!(
        claimed
            .iter()
            .map(|attempt_id| attempt_id.tid)
            .collect::<BTreeSet<Tid>>(),
        submitted
    );
    assert_eq!(
        broker.summary().await?.states,
        [(raddle_model::TaskState::Completed, TASKS as u64)].into()
    );
    Ok(())
}

/// Ids are unique, batches stay together, and everything is there.
pub async fn submitters_on_two_handles_lose_nothing(store: &dyn Fixture) -> Result<()> {
    let mut submitters: JoinSet<Result<Vec<Vec<Tid>>>> = JoinSet::new();
    for n in 0..4 {
        let handle = if n % 2 == 0 {
            store.broker().clone()
        } else {
            store.reopen().await
        };
        submitters.spawn(async move {
            let mut batches = Vec::new();
            for _ in 0..25 {
                batches.push(submit_all(&handle, vec![spec("task"); 4]).await?);
            }
            Ok(batches)
        });
    }
    let mut all = Vec::new();
    while let Some(batches) = submitters.join_next().await {
        let batches = batches.expect("submitters do not panic")?;
        assert!(batches.concat().is_sorted_by(|a, b| a < b));
        all.extend(batches.concat());
    }
    all.sort();
    let stored: Vec<_> = store
        .broker()
        .tasks(TaskFilter::default())
        .await?
        .iter()
        .rev()
        .map(|task| task.tid)
        .collect();
    assert_eq!(stored, all);
    assert_eq!(stored.len(), 400);
    Ok(())
}

/// A claim may be dropped before it has begun, while it is made, and when it is about to be given.
pub async fn claims_given_up_at_any_moment_lose_nothing(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    let mut kept = BTreeSet::new();
    for n in 0..100u64 {
        submit(broker, spec("task")).await?;
        let waiting = broker.claim(ClaimRequest {
            wait: SOON,
            ..request(owner)
        });
        if let Ok(claims) = tokio::time::timeout(Duration::from_micros(n * 20), waiting).await {
            kept.extend(claims?.iter().map(|claim| claim.attempt_id.tid));
        }
    }
    while kept.len() < 100 {
        let claims = broker
            .claim(ClaimRequest {
                max: 100,
                wait: SOON,
                ..request(owner)
            })
            .await?;
        assert!(!claims.is_empty(), "{} of 100 are lost", 100 - kept.len());
        for claim in claims {
            assert!(kept.insert(claim.attempt_id.tid), "given to two");
        }
    }
    Ok(())
}
