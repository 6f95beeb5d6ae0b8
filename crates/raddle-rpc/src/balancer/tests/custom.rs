//! Tests of custom balancers, written against the public API only.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use raddle_discovery::{WorkerMetadata, WorkerUid};

use super::{
    call,
    fake::{Behavior, pool},
};
use crate::{
    CallError, NoWorkersAvailable,
    balancer::{Balancer, BalancerContext, attempt},
    connection::{CallRequest, ReplyStream},
};

/// Dispatches calls to the worker with the fewest of them in flight.
#[derive(Default)]
struct LeastLoaded {
    in_flight: Mutex<HashMap<WorkerUid, usize>>,
}

impl LeastLoaded {
    fn change(&self, worker: &WorkerMetadata, by: isize) {
        let mut in_flight = self
            .in_flight
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let count = in_flight.entry(worker.uid).or_default();
        *count = count.saturating_add_signed(by);
    }

    fn in_flight(&self, worker: &WorkerMetadata) -> usize {
        self.in_flight
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&worker.uid)
            .copied()
            .unwrap_or(0)
    }
}

#[async_trait]
impl Balancer for LeastLoaded {
    async fn dispatch(
        &self,
        call: CallRequest,
        context: &BalancerContext,
        timeout: Option<Duration>,
    ) -> Result<ReplyStream, CallError> {
        let workers = context.workers();
        let fewest = workers
            .iter()
            .min_by_key(|worker| self.in_flight(&worker.metadata));
        let worker = fewest.ok_or_else(|| NoWorkersAvailable(Some("no workers".into())))?;
        self.change(&worker.metadata, 1);
        let replies = worker.factory.connect().dispatch(call, timeout).await;
        self.change(&worker.metadata, -1);
        Ok(replies?)
    }
}

/// Always starts with the last worker.
struct Last;

#[async_trait]
impl Balancer for Last {
    async fn dispatch(
        &self,
        call: CallRequest,
        context: &BalancerContext,
        timeout: Option<Duration>,
    ) -> Result<ReplyStream, CallError> {
        attempt(call, context, timeout, |candidates| {
            candidates.iter().map(|(index, _)| index).last()
        })
        .await
    }
}

/// Names an index that does not exist.
struct InvalidIndex;

#[async_trait]
impl Balancer for InvalidIndex {
    async fn dispatch(
        &self,
        call: CallRequest,
        context: &BalancerContext,
        timeout: Option<Duration>,
    ) -> Result<ReplyStream, CallError> {
        attempt(call, context, timeout, |candidates| {
            Some(candidates.worker_count() + 7)
        })
        .await
    }
}

#[tokio::test]
async fn balancer_of_the_documentation_works() {
    let (context, fakes) = pool([Behavior::Take, Behavior::Take]);
    let balancer = LeastLoaded::default();
    for _ in 0..4 {
        call(&balancer, &context, None).await.unwrap();
    }
    assert_eq!(fakes[0].take_calls() + fakes[1].take_calls(), 4);
    let error = call(&balancer, &BalancerContext::default(), None).await;
    assert_eq!(
        error,
        Err(NoWorkersAvailable(Some("no workers".into())).into())
    );
}

#[tokio::test]
async fn custom_balancer_only_names_an_order() {
    let (context, fakes) = pool([
        Behavior::Take,
        Behavior::Take,
        Behavior::Refuse(tonic::Code::Unavailable),
    ]);
    call(&Last, &context, None).await.unwrap();
    assert_eq!(fakes.each_ref().map(|fake| fake.take_calls()), [0, 1, 1]);
}

#[tokio::test]
async fn invalid_index_calls_no_worker() {
    let (context, fakes) = pool([Behavior::Take]);
    assert_eq!(
        call(&InvalidIndex, &context, None).await,
        Err(NoWorkersAvailable(None).into())
    );
    assert_eq!(fakes[0].take_calls(), 0);
}

#[tokio::test]
async fn factory_runs_when_the_proxy_starts() {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use crate::{CallTarget, WorkerProxy};

    let (_, fakes) = pool([Behavior::Take, Behavior::Take]);
    let (made, workers) = (Arc::new(AtomicUsize::new(0)), || {
        fakes.each_ref().map(|fake| fake.metadata.clone())
    });
    let make = || {
        let made = Arc::clone(&made);
        move || {
            made.fetch_add(1, Ordering::Relaxed);
            Last
        }
    };
    let by_value = WorkerProxy::of_workers(workers()).balancer(Last);
    let shared: Arc<dyn Balancer> = Arc::new(Last);
    let by_reference = WorkerProxy::of_workers(workers()).balancer(shared);
    let by_factory = WorkerProxy::of_workers(workers()).balancer(make());
    let make_last = make();
    let by_async_factory = WorkerProxy::of_workers(workers()).balancer(async move || {
        tokio::task::yield_now().await;
        make_last()
    });
    assert_eq!(made.load(Ordering::Relaxed), 0);
    for builder in [by_value, by_reference, by_factory, by_async_factory] {
        let proxy = builder.start().await.unwrap();
        for _ in 0..2 {
            super::end(
                proxy
                    .proxy()
                    .dispatch(super::fake::call(None), None)
                    .await
                    .unwrap(),
            )
            .await;
        }
    }
    assert_eq!(made.load(Ordering::Relaxed), 2);
    let calls = fakes.each_ref().map(|fake| fake.take_calls());
    assert!(calls == [0, 8] || calls == [8, 0], "{calls:?}");
}
