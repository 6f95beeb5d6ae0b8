//! Nested calls: routines call routines in their pool.

use std::collections::BTreeSet;

use raddle::{
    CallError, WorkerPool, WorkerProxy,
    discovery::LocalDiscovery,
    pool::{
        balancer::{RoundRobin, Sticky},
        worker::LocalWorker,
    },
};

use crate::{CALLEE, pool, routines, routines::First, start_pool, within};

/// The workers that run nested calls with these keys.
async fn nested_pids(pool: &WorkerPool, keys: impl Iterator<Item = u64>) -> BTreeSet<u32> {
    let mut pids = BTreeSet::new();
    for key in keys {
        pids.insert(routines::pid_below(key).on(pool).await.unwrap());
    }
    pids
}

#[tokio::test(flavor = "multi_thread")]
async fn nested_calls_use_the_balancer_and_keys_of_the_pool() {
    within(60, async {
        let sticky = pool(3).balancer(Sticky).start().await.unwrap();
        for key in 0..5 {
            let direct = routines::pid().key(key).on(&sticky).await.unwrap();
            assert_eq!(
                nested_pids(&sticky, [key; 6].into_iter()).await,
                BTreeSet::from([direct]),
                "{key}"
            );
        }
        // A user-defined balancer.
        let first = pool(3).balancer(First).start().await.unwrap();
        let direct = routines::pid().on(&first).await.unwrap();
        assert_eq!(nested_pids(&first, 0..6).await, BTreeSet::from([direct]));
        let turns = pool(2).balancer(RoundRobin).start().await.unwrap();
        assert_eq!(nested_pids(&turns, [1; 8].into_iter()).await.len(), 2);
        // Also where the pool has a discovery instead of workers.
        let discovery = LocalDiscovery::new(sticky.name()).unwrap();
        let durable = WorkerPool::builder()
            .discovery(discovery)
            .balancer(Sticky)
            .start()
            .await
            .unwrap();
        let direct = routines::pid().key(7).on(&durable).await.unwrap();
        assert_eq!(
            nested_pids(&durable, [7; 6].into_iter()).await,
            BTreeSet::from([direct])
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nested_calls_use_the_limit_of_the_pool_without_deadlock() {
    within(60, async {
        let pool = pool(1).limit(3).start().await.unwrap();
        assert_eq!(routines::max_in_flight_nested(20).on(&pool).await, Ok(3));
        // Deeper than the limit.
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
async fn nested_calls_stay_in_their_pool_when_two_share_a_name() {
    within(60, async {
        let name = format!("twins-{}", std::process::id());
        let (one, other) = (
            pool(1).name(&name).start().await.unwrap(),
            pool(1).name(&name).start().await.unwrap(),
        );
        for pool in [&one, &other] {
            assert_eq!(
                nested_pids(pool, 0..6).await,
                BTreeSet::from([pool.workers()[0].pid])
            );
        }
        // A proxy by name finds both.
        let both = WorkerProxy::of_pool(&name).start().await.unwrap();
        assert_eq!(both.context().workers().len(), 2);
        assert!(
            LocalDiscovery::namespaces().unwrap().contains(&name),
            "the pool is listed by its name"
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
async fn spawned_tasks_inherit_the_scope_or_explain_how() {
    within(60, async {
        let pool = start_pool(1).await;
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

/// Without TLS on a TCP port, so the worker cannot identify its callers.
#[tokio::test(flavor = "multi_thread")]
async fn rules_of_a_worker_do_not_apply_to_its_own_pool() {
    within(60, async {
        let rules = "spiffe://test/other = add";
        let with_rules = move |tags: &_| {
            let worker = LocalWorker::new(tags)
                .program(CALLEE)
                .address_of("127.0.0.1:0");
            worker.allow(rules.parse().unwrap())
        };
        let pool = pool(2).worker(with_rules).start().await.unwrap();
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
