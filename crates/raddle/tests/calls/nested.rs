//! Calls that routines make in the pool that they were called in.

use std::collections::BTreeSet;

use raddle::{
    CallError, WorkerPool, WorkerProxy,
    discovery::LocalDiscovery,
    pool::{
        balancer::{RoundRobin, Sticky},
        worker::LocalWorker,
    },
};

use crate::{CALLEE, pool, routines, routines::First, started, within};

/// The workers that run what routines call, with these keys.
async fn below(pool: &WorkerPool, keys: impl Iterator<Item = u64>) -> BTreeSet<u32> {
    let mut pids = BTreeSet::new();
    for key in keys {
        pids.insert(routines::pid_below(key).on(pool).await.unwrap());
    }
    pids
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_of_routines_are_balanced_as_those_of_the_pool_and_by_their_keys() {
    within(60, async {
        let sticky = pool(3).balancer(Sticky).start().await.unwrap();
        for key in 0..5 {
            let direct = routines::pid().key(key).on(&sticky).await.unwrap();
            assert_eq!(
                below(&sticky, [key; 6].into_iter()).await,
                BTreeSet::from([direct]),
                "{key}"
            );
        }
        // Of a user's own making.
        let first = pool(3).balancer(First).start().await.unwrap();
        let direct = routines::pid().on(&first).await.unwrap();
        assert_eq!(below(&first, 0..6).await, BTreeSet::from([direct]));
        let turns = pool(2).balancer(RoundRobin).start().await.unwrap();
        assert_eq!(below(&turns, [1; 8].into_iter()).await.len(), 2);
        // Also where workers are named, and not found by the pool's id.
        let discovery = LocalDiscovery::new(sticky.name()).unwrap();
        let durable = WorkerPool::builder()
            .discovery(discovery)
            .balancer(Sticky)
            .start()
            .await
            .unwrap();
        let direct = routines::pid().key(7).on(&durable).await.unwrap();
        assert_eq!(
            below(&durable, [7; 6].into_iter()).await,
            BTreeSet::from([direct])
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_of_routines_are_limited_as_those_of_the_pool_and_do_not_wait_for_each_other() {
    within(60, async {
        let pool = pool(1).limit(3).start().await.unwrap();
        assert_eq!(routines::crowd_below(20).on(&pool).await, Ok(3));
        // Deeper than there are places in a row.
        assert_eq!(routines::nested(12).on(&pool).await, Ok(12));
        let all = (0..20).map(|_| routines::nested(3).on(&pool));
        assert!(
            futures_util::future::join_all(all)
                .await
                .into_iter()
                .all(|depth| depth == Ok(3))
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_of_routines_stay_in_their_pool_whatever_others_are_called() {
    within(60, async {
        let name = format!("twins-{}", std::process::id());
        let (one, other) = (
            pool(1).name(&name).start().await.unwrap(),
            pool(1).name(&name).start().await.unwrap(),
        );
        for pool in [&one, &other] {
            assert_eq!(
                below(pool, 0..6).await,
                BTreeSet::from([pool.workers()[0].pid])
            );
        }
        // Those who look for the name find both, as they say.
        let both = WorkerProxy::of_pool(&name).start().await.unwrap();
        assert_eq!(both.context().workers().len(), 2);
        assert!(
            LocalDiscovery::namespaces().unwrap().contains(&name),
            "it is listed by its name"
        );
        assert!(
            LocalDiscovery::namespaces()
                .unwrap()
                .iter()
                .all(|name| name.parse::<raddle::pool::WorkerUid>().is_err())
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_that_are_spawned_in_a_scope_call_there_or_say_how() {
    within(60, async {
        let pool = started(1).await;
        assert_eq!(
            pool.spawn(async { routines::add(1, 2).await })
                .await
                .unwrap(),
            Ok(3)
        );
        let inside = pool.scope(async {
            let in_scope = raddle::spawn(async { routines::add(1, 2).await });
            let outside = tokio::spawn(async { routines::add(1, 2).await });
            (in_scope.await.unwrap(), outside.await.unwrap())
        });
        assert_eq!(inside.await, (Ok(3), Err(CallError::NoPool)));
        assert_eq!(routines::add_in_task(true).on(&pool).await, Ok(3));
        let Err(CallError::Failed(error)) = routines::add_in_task(false).on(&pool).await else {
            panic!("no scope")
        };
        assert!(
            error.contains("`pool.spawn(…)`") && error.contains("`raddle::spawn(…)`"),
            "{error}"
        );
    })
    .await;
}

/// Without TLS, at a port: the worker does not know its callers.
#[tokio::test(flavor = "multi_thread")]
async fn rules_of_a_worker_at_a_port_are_not_for_the_pool_that_has_started_it() {
    within(60, async {
        let rules = "spiffe://test/other = add";
        let ruled = move |tags: &_| {
            let worker = LocalWorker::new(tags)
                .program(CALLEE)
                .address_of("127.0.0.1:0");
            worker.allow(rules.parse().unwrap())
        };
        let pool = pool(2).worker(ruled).start().await.unwrap();
        assert_eq!(routines::add(1, 2).on(&pool).await, Ok(3));
        assert_eq!(routines::nested(4).on(&pool).await, Ok(4));
        let stranger = WorkerProxy::of_workers(pool.workers())
            .start()
            .await
            .unwrap();
        let denied = routines::add(1, 2).on(&stranger).await;
        assert!(matches!(denied, Err(CallError::Denied(_))), "{denied:?}");
    })
    .await;
}
