//! The four modes of a pool, proxies without a pool, and balancers.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use raddle::{
    WorkerPool, WorkerProxy,
    discovery::LocalDiscovery,
    pool::{
        balancer::{LeastLoaded, PowerOfTwo, Sticky},
        worker::LocalWorker,
    },
};

use crate::{CALLEE, pool, routines, start_pool, wait_until, within};

#[tokio::test(flavor = "multi_thread")]
async fn by_default_there_are_as_many_workers_as_cores() {
    within(120, async {
        let workers = |tags: &_| LocalWorker::new(tags).program(CALLEE);
        let pool = WorkerPool::builder().worker(workers).start().await.unwrap();
        assert_eq!(
            pool.workers().len(),
            std::thread::available_parallelism().unwrap().get()
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_durable_pool_uses_foreign_workers_and_a_hybrid_pool_both() {
    within(120, async {
        let owner = pool(2).tags(["gpu"]).start().await.unwrap();
        let discovery = || LocalDiscovery::new(owner.name()).unwrap();
        let durable = WorkerPool::builder()
            .discovery(discovery())
            .start()
            .await
            .unwrap();
        let pids = |pool: &WorkerPool| {
            pool.workers()
                .iter()
                .map(|worker| worker.pid)
                .collect::<BTreeSet<_>>()
        };
        assert_eq!(pids(&durable), pids(&owner));
        assert!(pids(&owner).contains(&routines::pid().on(&durable).await.unwrap()));
        assert_eq!(routines::nested(2).on(&durable).await, Ok(2));
        let hybrid = pool(1).discovery(discovery()).start().await.unwrap();
        assert_eq!(pids(&hybrid).len(), 3);
        let others = WorkerPool::builder()
            .discovery(discovery())
            .tags(["tpu"])
            .start()
            .await
            .unwrap();
        assert_eq!(others.workers(), []);
        // A pool stops only its own workers.
        hybrid.stop().await;
        assert_eq!(routines::add(1, 2).on(&durable).await, Ok(3));
        owner.stop().await;
        wait_until("the workers are dropped", async || {
            durable.workers().is_empty()
        })
        .await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_takes_workers_by_name_discovery_or_list() {
    within(120, async {
        let owner = start_pool(2).await;
        let by_name = WorkerProxy::of_pool(owner.name()).start().await.unwrap();
        let by_discovery = WorkerProxy::of_discovery(LocalDiscovery::new(owner.name()).unwrap())
            .start()
            .await
            .unwrap();
        let given = WorkerProxy::of_workers(owner.workers())
            .start()
            .await
            .unwrap();
        for proxy in [by_name, by_discovery, given] {
            assert_eq!(routines::add(1, 2).on(&proxy).await, Ok(3));
            let [one, other] = proxy
                .scope(async { [routines::pid().await, routines::pid().await] })
                .await;
            assert_ne!(one.unwrap(), other.unwrap(), "workers take turns");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lazy_pool_starts_with_its_first_call() {
    within(120, async {
        let pool = pool(1).lazy().start().await.unwrap();
        assert_eq!(pool.workers(), []);
        assert_eq!(routines::add(1, 2).on(&pool).await, Ok(3));
        assert_eq!(pool.workers().len(), 1);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_starts_with_a_quorum() {
    static MADE: AtomicUsize = AtomicUsize::new(0);
    within(120, async {
        // The first worker never starts.
        let workers = |tags: &_| {
            let is_first = MADE.fetch_add(1, Ordering::Relaxed) == 0;
            LocalWorker::new(tags).program(if is_first { "/bin/false" } else { CALLEE })
        };
        let pool = pool(2).worker(workers).quorum(1).start().await.unwrap();
        assert_eq!(routines::add(1, 2).on(&pool).await, Ok(3));
        wait_until("the other worker starts later", async || {
            pool.workers().len() == 2
        })
        .await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn balancers_choose_by_key_by_load_and_by_latency() {
    within(120, async {
        let sticky = pool(3).balancer(Sticky).start().await.unwrap();
        for key in 0..10 {
            let first = routines::pid().key(key).on(&sticky).await.unwrap();
            assert_eq!(routines::pid().key(key).on(&sticky).await, Ok(first));
        }
        let least = pool(2).balancer(LeastLoaded).start().await.unwrap();
        let busy = tokio::spawn(routines::rest(2000).on(&least));
        tokio::time::sleep(Duration::from_millis(200)).await;
        let idle = [
            routines::pid().on(&least).await,
            routines::pid().on(&least).await,
        ];
        assert_eq!(idle[0], idle[1], "the idle worker is called");
        assert_ne!(idle[0], busy.await.unwrap());
        let two = pool(2).balancer(PowerOfTwo).start().await.unwrap();
        for _ in 0..20 {
            assert_eq!(routines::add(1, 2).on(&two).await, Ok(3));
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_serve_on_tcp_ports_and_socket_paths() {
    within(120, async {
        let directory = tempfile::tempdir().unwrap();
        let path = format!("unix:{}/w.sock", directory.path().display());
        for address in ["127.0.0.1:0".to_owned(), path] {
            let worker = move |tags: &_| {
                LocalWorker::new(tags)
                    .program(CALLEE)
                    .address_of(address.clone())
            };
            let pool = pool(1).worker(worker).start().await.unwrap();
            assert_eq!(routines::add(1, 2).on(&pool).await, Ok(3));
            pool.stop().await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_socket_path_is_reused_after_a_kill_and_removed_at_the_end() {
    within(120, async {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("w.sock");
        let address = format!("unix:{}", path.display());
        let worker = move |tags: &_| {
            LocalWorker::new(tags)
                .program(CALLEE)
                .address_of(address.clone())
        };
        let pool = pool(1).worker(worker).start().await.unwrap();
        let before = routines::pid().on(&pool).await.unwrap();
        crate::signal(before, libc::SIGKILL);
        wait_until("the killed worker is dropped", async || {
            pool.workers()
                .first()
                .is_none_or(|worker| worker.pid != before)
        })
        .await;
        assert_ne!(routines::pid().on(&pool).await.unwrap(), before);
        pool.stop().await;
        assert!(!path.exists());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dropping_a_pool_unpublishes_only_its_own_workers() {
    within(120, async {
        let owner = start_pool(1).await;
        let discovery = || LocalDiscovery::new(owner.name()).unwrap();
        let hybrid = pool(1)
            .name(owner.name())
            .discovery(discovery())
            .start()
            .await
            .unwrap();
        wait_until("both workers are known", async || {
            hybrid.workers().len() == 2 && discovery().snapshot().len() == 2
        })
        .await;
        drop(hybrid);
        wait_until("one worker is unpublished", async || {
            discovery().snapshot().len() == 1
        })
        .await;
        assert_eq!(discovery().snapshot()[0].pid, owner.workers()[0].pid);
    })
    .await;
}
