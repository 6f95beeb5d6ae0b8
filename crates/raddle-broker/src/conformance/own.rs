//! Tasks that run where they are submitted.

use raddle_core::{EventKind, Span, Spec, State};

use super::{Fixture, support::*};
use crate::{
    Error, Result,
    request::{ClaimRequest, Fence, Submit, Submitted, TaskFilter, Verdict},
};

/// One step: stored, registered, claimed.
pub async fn a_task_of_ones_own_is_claimed_at_once(store: &dyn Fixture) -> Result<()> {
    let (broker, other) = (store.broker(), store.reopen().await);
    let waiting = submit(broker, Spec { priority: 9, ..spec("waiting") }).await?;
    let odd = Spec { queue: "odd".into(), requires: caps("gpu"), ..spec("mine") };
    let own = broker.submit_own(Submit { spec: odd.clone(), parent: Some(waiting) }, info("inline"), TTL).await?;
    let Submitted::New(tid) = own.submitted else { panic!("it is stored: {own:?}") };
    let owner = own.worker.expect("a worker is registered");
    let claim = own.claim.expect("it is claimed");
    assert_eq!((claim.fence, claim.spec), (Fence { tid, attempt: 1 }, odd));
    let task = view(&other, tid).await?;
    assert_eq!((task.state, task.worker, task.parent), (State::Spawning, Some(owner), Some(waiting)));
    assert_eq!(kinds(broker, tid).await?, [EventKind::Created, EventKind::Spawning]);
    assert_eq!(kinds(broker, owner).await?, [EventKind::Created, EventKind::Running]);
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
        let own = broker.submit_own(Submit::new(spec("mine")), info("inline"), TTL).await?;
        assert!(own.claim.is_some());
    }
    let tid = submit(broker, spec("theirs")).await?;
    let claims = waiting.await.expect("waiting does not panic")?;
    assert_eq!(claims.iter().map(|claim| claim.fence.tid).collect::<Vec<_>>(), [tid]);
    Ok(())
}

/// There is nothing for it to run.
pub async fn a_key_that_is_taken_registers_nobody(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let unique = Spec { unique_key: Some("the one".into()), ..spec("task") };
    let first = submit(broker, unique.clone()).await?;
    let own = broker.submit_own(Submit::new(unique), info("inline"), TTL).await?;
    assert_eq!((own.submitted, own.worker), (Submitted::Existing(first), None));
    assert!(own.claim.is_none() && broker.workers().await?.is_empty());
    assert_eq!(broker.tasks(TaskFilter { services: true, ..TaskFilter::default() }).await?.len(), 1);
    Ok(())
}

/// The worker is there to wait for it.
pub async fn a_time_that_has_not_come_claims_nothing(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let later = Spec { delay: Some(Span::millis(80)), ..spec("later") };
    let own = broker.submit_own(Submit::new(later), info("inline"), TTL).await?;
    assert!(own.claim.is_none());
    let (tid, owner) = (own.submitted.tid(), own.worker.expect("a worker is registered"));
    assert_eq!(view(broker, tid).await?.state, State::Created);
    let claims = broker.claim(ClaimRequest { only: Some(tid), wait: SOON, ..request(owner) }).await?;
    assert_eq!(claims.iter().map(|claim| claim.fence).collect::<Vec<_>>(), [Fence { tid, attempt: 1 }]);
    Ok(())
}

/// Neither a task nor a worker.
pub async fn an_invalid_task_leaves_nothing(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let invalid = Submit::new(Spec::command(Vec::<String>::new()));
    let refused = broker.submit_own(invalid, info("inline"), TTL).await;
    assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    assert!(broker.workers().await?.is_empty());
    assert!(broker.events(0, None, 10, AT_ONCE).await?.is_empty());
    Ok(())
}
