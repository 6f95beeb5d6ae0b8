//! Tasks that run where they are submitted.

use raddle_model::{HumanDuration, TaskEventKind, TaskSpec, TaskState, worker::Heartbeat};

use super::{Fixture, support::*};
use crate::{
    AttemptId, AttemptStarted, ClaimRequest, CompletionOutcome, Error, LeaseStatus, NewTask,
    Result, SubmitAndClaim, Submitted, TaskFilter,
};

fn mine() -> SubmitAndClaim {
    SubmitAndClaim {
        task: NewTask::new(spec("mine")),
        worker: info("inline"),
        lease: TTL,
    }
}

/// One step: stored, registered, claimed.
pub async fn claims_a_task_with_its_submission(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let waiting = submit(
        broker,
        TaskSpec {
            priority: 9,
            ..spec("waiting")
        },
    )
    .await?;
    let odd = TaskSpec {
        queue: "odd".into(),
        requires: caps("gpu"),
        ..spec("mine")
    };
    let own = broker
        .submit_and_claim(SubmitAndClaim {
            task: NewTask {
                spec: odd.clone(),
                parent: Some(waiting),
            },
            ..mine()
        })
        .await?;
    let Submitted::New(tid) = own.submitted else {
        panic!("it is stored: {own:?}")
    };
    let owner = own.worker.expect("a worker is registered");
    let claim = own.claim.expect("it is claimed");
    assert_eq!(
        (claim.attempt_id, claim.spec),
        (
            AttemptId {
                tid,
                attempt: 1,
                owner
            },
            odd
        )
    );
    let other = store.reopen().await;
    let task = view(&other, tid).await?;
    assert_eq!(
        (task.state, task.worker, task.parent),
        (TaskState::Spawning, Some(owner), Some(waiting))
    );
    assert_eq!(
        kinds(broker, tid).await?,
        [TaskEventKind::Created, TaskEventKind::Spawning]
    );
    assert_eq!(
        other
            .workers()
            .await?
            .iter()
            .map(|entry| entry.tid)
            .collect::<Vec<_>>(),
        [owner]
    );
    assert_eq!(
        end(&other, claim.attempt_id, success()).await?,
        CompletionOutcome::Finished(TaskState::Completed)
    );
    assert_eq!(view(broker, waiting).await?.state, TaskState::Created);
    Ok(())
}

/// Even if they wait for nothing else.
pub async fn no_other_worker_claims_it_in_between(store: &dyn Fixture) -> Result<()> {
    let (broker, other) = (store.broker(), store.reopen().await);
    let rival = worker(&other).await?;
    let waiting = tokio::spawn({
        let other = other.clone();
        async move {
            other
                .claim(ClaimRequest {
                    wait: SOON,
                    ..request(rival)
                })
                .await
        }
    });
    for _ in 0..20 {
        let own = broker.submit_and_claim(mine()).await?;
        assert!(own.claim.is_some());
    }
    let tid = submit(broker, spec("theirs")).await?;
    let claims = waiting.await.expect("waiting does not panic")?;
    assert_eq!(
        claims
            .iter()
            .map(|claim| claim.attempt_id.tid)
            .collect::<Vec<_>>(),
        [tid]
    );
    Ok(())
}

/// It is no task, and nothing has to be done about it afterwards; unless its task goes on
/// elsewhere.
pub async fn a_worker_for_one_task_leaves_with_the_one_it_claims(
    store: &dyn Fixture,
) -> Result<()> {
    let broker = store.broker();
    let owner = broker.register_ephemeral(info("warm"), TTL).await?;
    assert_eq!(
        broker
            .workers()
            .await?
            .iter()
            .map(|entry| entry.tid)
            .collect::<Vec<_>>(),
        [owner]
    );
    assert_eq!(broker.task(owner).await?, None);
    assert!(matches!(
        broker
            .lease_renewer(owner, TTL)
            .renew(Heartbeat::default())?,
        LeaseStatus::Alive(_)
    ));
    let tid = submit(broker, spec("task")).await?;
    let claims = broker.claim(request(owner)).await?;
    assert_eq!(claims[0].attempt_id.tid, tid);
    assert_eq!(
        end(broker, claims[0].attempt_id, success()).await?,
        CompletionOutcome::Finished(TaskState::Completed)
    );
    assert_eq!(broker.workers().await?, []);
    assert!(
        matches!(broker.claim(request(owner)).await, Err(Error::NotFound(tid)) if tid == owner)
    );

    let owner = broker.register_ephemeral(info("warm"), TTL).await?;
    submit(broker, spec("task")).await?;
    let claims = broker.claim(request(owner)).await?;
    let lost = raddle_model::ExitStatus::WorkerLost {
        message: "its worker was killed".into(),
    };
    assert!(matches!(
        end(broker, claims[0].attempt_id, lost).await?,
        CompletionOutcome::Retry(_)
    ));
    assert_eq!(broker.workers().await?.len(), 1);
    broker.deregister(owner, None).await?;
    assert_eq!(broker.workers().await?, []);
    Ok(())
}

/// There is nothing for it to run.
pub async fn a_taken_key_registers_no_worker(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let unique = TaskSpec {
        unique_key: Some("the one".into()),
        ..spec("task")
    };
    let first = submit(broker, unique.clone()).await?;
    let own = broker
        .submit_and_claim(SubmitAndClaim {
            task: NewTask::new(unique),
            ..mine()
        })
        .await?;
    assert_eq!(
        (own.submitted, own.worker),
        (Submitted::Existing(first), None)
    );
    assert!(own.claim.is_none() && broker.workers().await?.is_empty());
    assert_eq!(
        broker
            .tasks(TaskFilter {
                services: true,
                ..TaskFilter::default()
            })
            .await?
            .len(),
        1
    );
    Ok(())
}

/// The worker is there to wait for it.
pub async fn a_time_that_has_not_come_claims_nothing(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let later = TaskSpec {
        delay: Some(HumanDuration::millis(80)),
        ..spec("later")
    };
    let own = broker
        .submit_and_claim(SubmitAndClaim {
            task: NewTask::new(later),
            ..mine()
        })
        .await?;
    assert!(own.claim.is_none());
    let (tid, owner) = (
        own.submitted.tid(),
        own.worker.expect("a worker is registered"),
    );
    assert_eq!(view(broker, tid).await?.state, TaskState::Created);
    let claims = broker
        .claim(ClaimRequest {
            only: Some(tid),
            wait: SOON,
            ..request(owner)
        })
        .await?;
    assert_eq!(
        claims
            .iter()
            .map(|claim| claim.attempt_id)
            .collect::<Vec<_>>(),
        [AttemptId {
            tid,
            attempt: 1,
            owner
        }]
    );
    Ok(())
}

/// Neither a task nor a worker.
pub async fn an_invalid_task_leaves_nothing(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let invalid = NewTask::new(TaskSpec::command(Vec::<String>::new()));
    let refused = broker
        .submit_and_claim(SubmitAndClaim {
            task: invalid,
            ..mine()
        })
        .await;
    assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    assert!(broker.workers().await?.is_empty());
    assert!(broker.events(Some(0), None, 10, AT_ONCE).await?.is_empty());
    Ok(())
}

/// It has no task record and nothing else to do, and no caller has to wait until its lease expires.
pub async fn its_worker_leaves_with_it(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let twice = NewTask::new(retrying(2, HumanDuration::millis(1)));
    let own = broker
        .submit_and_claim(SubmitAndClaim {
            task: twice,
            ..mine()
        })
        .await?;
    let (owner, tid) = (
        own.worker.expect("a worker is registered"),
        own.submitted.tid(),
    );
    assert!(broker.task(owner).await?.is_none());
    let outcome = end(
        broker,
        AttemptId {
            tid,
            attempt: 1,
            owner,
        },
        failure(),
    )
    .await?;
    assert!(
        matches!(outcome, CompletionOutcome::Retry(_)),
        "{outcome:?}"
    );
    assert_eq!(
        broker.workers().await?.len(),
        1,
        "it is there for the second attempt too"
    );
    let claims = broker
        .claim(ClaimRequest {
            only: Some(tid),
            wait: SOON,
            ..request(owner)
        })
        .await?;
    assert_eq!(
        end(broker, claims[0].attempt_id, failure()).await?,
        CompletionOutcome::Finished(TaskState::Failed)
    );
    assert!(broker.workers().await?.is_empty());
    let mut renewer = broker.lease_renewer(owner, TTL);
    let heartbeat = tokio::task::spawn_blocking(move || renewer.renew(Heartbeat::default()))
        .await
        .expect("a beat does not panic")?;
    assert_eq!(heartbeat, LeaseStatus::Expired);
    Ok(())
}

/// One that is killed leaves its task to be taken over.
pub async fn reclaims_the_task_of_its_lost_worker(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let own = broker
        .submit_and_claim(SubmitAndClaim {
            lease: SHORT_TTL,
            ..mine()
        })
        .await?;
    let claim = own.claim.expect("it is claimed");
    broker
        .mark_started(vec![AttemptStarted {
            attempt_id: claim.attempt_id,
            pid: None,
        }])
        .await?;
    pass_lease().await;
    let taken = broker.reclaim().await?;
    assert_eq!(
        taken.iter().map(|task| task.attempt_id).collect::<Vec<_>>(),
        [claim.attempt_id]
    );
    assert_eq!(Some(claim.attempt_id.owner), own.worker);
    assert!(broker.workers().await?.is_empty());
    let next = worker(broker).await?;
    let claims = broker
        .claim(ClaimRequest {
            wait: SOON,
            ..request(next)
        })
        .await?;
    assert_eq!(
        claims[0].attempt_id,
        AttemptId {
            attempt: 2,
            owner: next,
            ..claim.attempt_id
        }
    );
    Ok(())
}
