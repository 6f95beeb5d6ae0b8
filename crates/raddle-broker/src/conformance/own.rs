//! Tasks that run where they are submitted.

use raddle_core::{EventKind, Span, Spec, State, worker::Beat};

use super::{Fixture, support::*};
use crate::{
    Error, Result,
    request::{ClaimRequest, Fence, OwnRequest, Pulse, Started, Submit, Submitted, TaskFilter, Verdict},
};

fn mine() -> OwnRequest {
    OwnRequest { task: Submit::new(spec("mine")), worker: info("inline"), lease: TTL }
}

/// One step: stored, registered, claimed.
pub async fn a_task_of_ones_own_is_claimed_at_once(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let waiting = submit(broker, Spec { priority: 9, ..spec("waiting") }).await?;
    let odd = Spec { queue: "odd".into(), requires: caps("gpu"), ..spec("mine") };
    let own =
        broker.submit_own(OwnRequest { task: Submit { spec: odd.clone(), parent: Some(waiting) }, ..mine() }).await?;
    let Submitted::New(tid) = own.submitted else { panic!("it is stored: {own:?}") };
    let owner = own.worker.expect("a worker is registered");
    let claim = own.claim.expect("it is claimed");
    assert_eq!((claim.fence, claim.spec), (Fence { tid, attempt: 1, owner }, odd));
    let other = store.reopen().await;
    let task = view(&other, tid).await?;
    assert_eq!((task.state, task.worker, task.parent), (State::Spawning, Some(owner), Some(waiting)));
    assert_eq!(kinds(broker, tid).await?, [EventKind::Created, EventKind::Spawning]);
    assert_eq!(other.workers().await?.iter().map(|entry| entry.tid).collect::<Vec<_>>(), [owner]);
    assert_eq!(end(&other, claim.fence, success()).await?, Verdict::Done(State::Completed));
    assert_eq!(view(broker, waiting).await?.state, State::Created);
    Ok(())
}

/// Even if they wait for nothing else.
pub async fn nobody_else_can_claim_it_in_between(store: &dyn Fixture) -> Result<()> {
    let (broker, other) = (store.broker(), store.reopen().await);
    let rival = worker(&other).await?;
    let waiting = tokio::spawn({
        let other = other.clone();
        async move { other.claim(ClaimRequest { wait: SOON, ..request(rival) }).await }
    });
    for _ in 0..20 {
        let own = broker.submit_own(mine()).await?;
        assert!(own.claim.is_some());
    }
    let tid = submit(broker, spec("theirs")).await?;
    let claims = waiting.await.expect("waiting does not panic")?;
    assert_eq!(claims.iter().map(|claim| claim.fence.tid).collect::<Vec<_>>(), [tid]);
    Ok(())
}

/// It is no task, and nothing has to be done about it afterwards; unless its task goes on elsewhere.
pub async fn a_worker_for_one_task_leaves_with_the_one_it_claims(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = broker.register_own(info("warm"), TTL).await?;
    assert_eq!(broker.workers().await?.iter().map(|entry| entry.tid).collect::<Vec<_>>(), [owner]);
    assert_eq!(broker.task(owner).await?, None);
    assert!(matches!(broker.heart(owner, TTL).beat(Beat::default())?, Pulse::Alive(_)));
    let tid = submit(broker, spec("task")).await?;
    let claims = broker.claim(request(owner)).await?;
    assert_eq!(claims[0].fence.tid, tid);
    assert_eq!(end(broker, claims[0].fence, success()).await?, Verdict::Done(State::Completed));
    assert_eq!(broker.workers().await?, []);
    assert!(matches!(broker.claim(request(owner)).await, Err(Error::NotFound(tid)) if tid == owner));

    let owner = broker.register_own(info("warm"), TTL).await?;
    submit(broker, spec("task")).await?;
    let claims = broker.claim(request(owner)).await?;
    let lost = raddle_core::Exit::Lost { message: "its worker was killed".into() };
    assert!(matches!(end(broker, claims[0].fence, lost).await?, Verdict::Again(_)));
    assert_eq!(broker.workers().await?.len(), 1);
    broker.deregister(owner, None).await?;
    assert_eq!(broker.workers().await?, []);
    Ok(())
}

/// There is nothing for it to run.
pub async fn a_key_that_is_taken_registers_nobody(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let unique = Spec { unique_key: Some("the one".into()), ..spec("task") };
    let first = submit(broker, unique.clone()).await?;
    let own = broker.submit_own(OwnRequest { task: Submit::new(unique), ..mine() }).await?;
    assert_eq!((own.submitted, own.worker), (Submitted::Existing(first), None));
    assert!(own.claim.is_none() && broker.workers().await?.is_empty());
    assert_eq!(broker.tasks(TaskFilter { services: true, ..TaskFilter::default() }).await?.len(), 1);
    Ok(())
}

/// The worker is there to wait for it.
pub async fn a_time_that_has_not_come_claims_nothing(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let later = Spec { delay: Some(Span::millis(80)), ..spec("later") };
    let own = broker.submit_own(OwnRequest { task: Submit::new(later), ..mine() }).await?;
    assert!(own.claim.is_none());
    let (tid, owner) = (own.submitted.tid(), own.worker.expect("a worker is registered"));
    assert_eq!(view(broker, tid).await?.state, State::Created);
    let claims = broker.claim(ClaimRequest { only: Some(tid), wait: SOON, ..request(owner) }).await?;
    assert_eq!(claims.iter().map(|claim| claim.fence).collect::<Vec<_>>(), [Fence { tid, attempt: 1, owner }]);
    Ok(())
}

/// Neither a task nor a worker.
pub async fn an_invalid_task_leaves_nothing(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let invalid = Submit::new(Spec::command(Vec::<String>::new()));
    let refused = broker.submit_own(OwnRequest { task: invalid, ..mine() }).await;
    assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    assert!(broker.workers().await?.is_empty());
    assert!(broker.events(Some(0), None, 10, AT_ONCE).await?.is_empty());
    Ok(())
}

/// It is no task, has nothing else to do, and nobody has to wait for its lease to run out.
pub async fn its_worker_leaves_with_it(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let twice = Submit::new(retrying(2, Span::millis(1)));
    let own = broker.submit_own(OwnRequest { task: twice, ..mine() }).await?;
    let (owner, tid) = (own.worker.expect("a worker is registered"), own.submitted.tid());
    assert!(broker.task(owner).await?.is_none());
    let verdict = end(broker, Fence { tid, attempt: 1, owner }, failure()).await?;
    assert!(matches!(verdict, Verdict::Again(_)), "{verdict:?}");
    assert_eq!(broker.workers().await?.len(), 1, "it is there for the second attempt too");
    let claims = broker.claim(ClaimRequest { only: Some(tid), wait: SOON, ..request(owner) }).await?;
    assert_eq!(end(broker, claims[0].fence, failure()).await?, Verdict::Done(State::Failed));
    assert!(broker.workers().await?.is_empty());
    let mut heart = broker.heart(owner, TTL);
    let beat =
        tokio::task::spawn_blocking(move || heart.beat(Beat::default())).await.expect("a beat does not panic")?;
    assert_eq!(beat, Pulse::Expired);
    Ok(())
}

/// One that is killed leaves its task to be taken over.
pub async fn what_its_worker_leaves_behind_is_taken_back(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let own = broker.submit_own(OwnRequest { lease: SHORT_TTL, ..mine() }).await?;
    let claim = own.claim.expect("it is claimed");
    broker.started(vec![Started { fence: claim.fence, pid: None }]).await?;
    pass_lease().await;
    let taken = broker.reclaim().await?;
    assert_eq!(taken.iter().map(|task| task.fence).collect::<Vec<_>>(), [claim.fence]);
    assert_eq!(Some(claim.fence.owner), own.worker);
    assert!(broker.workers().await?.is_empty());
    let next = worker(broker).await?;
    let claims = broker.claim(ClaimRequest { wait: SOON, ..request(next) }).await?;
    assert_eq!(claims[0].fence, Fence { attempt: 2, owner: next, ..claim.fence });
    Ok(())
}
