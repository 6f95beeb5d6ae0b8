//! `myapp pool serve`: workers for pools of other programs.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod addresses;
mod control;
mod metrics;
#[path = "../../../raddle-broker-redis/tests/redis_server/mod.rs"]
#[expect(dead_code, reason = "other tests use more of it")]
mod redis_server;
mod registry;
#[path = "../calls/routines.rs"]
mod routines;
mod secure;
mod server;
mod shutdown;
#[path = "../support/waits.rs"]
mod waits;

use self::{
    server::PoolServer,
    waits::{wait_until, within},
};

/// The program of the workers.
const CALLEE: &str = env!("CARGO_BIN_EXE_raddle-test-callee");

#[tokio::test(flavor = "multi_thread")]
async fn a_durable_pool_calls_workers_of_another_program() {
    within(120, async {
        let served = PoolServer::start(&["--workers", "2", "--tags", "gpu,big"]).await;
        assert_eq!(
            (&served.ready["pool"], served.workers().len()),
            (&"default".into(), 2)
        );
        assert_eq!(served.ready["pid"], served.pid());
        let pool = served.pool().tags(["gpu"]).start().await.unwrap();
        assert_eq!(routines::add(1, 2).on(&pool).await, Ok(3));
        let mut pids = [
            routines::pid().on(&pool).await.unwrap(),
            routines::pid().on(&pool).await.unwrap(),
        ];
        pids.sort_unstable();
        let mut known: Vec<u32> = served.workers().iter().map(|worker| worker.pid).collect();
        known.sort_unstable();
        assert_eq!(pids[..], known[..]);
        let other = served.pool().tags(["tpu"]).start().await.unwrap();
        assert!(other.workers().is_empty());
        assert_eq!(served.title(), "raddle-", "all titles begin so");
        served.interrupt().assert_ends(0).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replaces_a_killed_worker() {
    within(120, async {
        let served = PoolServer::start(&["--workers", "1"]).await;
        let pool = served.pool().start().await.unwrap();
        let before = routines::pid().on(&pool).await.unwrap();
        server::signal(before, libc::SIGKILL);
        wait_until("the replacement answers", async || {
            routines::pid()
                .on(&pool)
                .await
                .is_ok_and(|pid| pid != before)
        })
        .await;
        served.terminate().assert_ends(0).await;
    })
    .await;
}
