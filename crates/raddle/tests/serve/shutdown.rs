//! Shutdown by signals, by `--max-uptime`, and by `SIGKILL`.

use std::time::{Duration, Instant};

use raddle::CallError;

use crate::{
    routines,
    server::{PoolServer, ServerDir, is_alive, signal},
    wait_until, within,
};

#[tokio::test(flavor = "multi_thread")]
async fn sigint_drains_calls() {
    within(120, async {
        let served = PoolServer::start(&["--workers", "2"]).await;
        let pool = served.pool().start().await.unwrap();
        let running: Vec<_> = (0..4)
            .map(|_| tokio::spawn(routines::rest(2500).on(&pool)))
            .collect();
        tokio::time::sleep(Duration::from_millis(500)).await;
        served.interrupt();
        wait_until("the workers are unpublished", async || {
            served.workers().is_empty()
        })
        .await;
        // Workers are unpublished first and stopped after that.
        let is_refused = async || {
            matches!(
                routines::add(1, 2).on(&pool).await,
                Err(CallError::NoWorkers(_))
            )
        };
        wait_until("calls are refused", is_refused).await;
        assert!(!served.is_over(), "the server waits for calls");
        for call in running {
            call.await.unwrap().unwrap();
        }
        served.assert_ends(0).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_sigint_and_sigterm_cancel_calls() {
    within(120, async {
        for is_second in [true, false] {
            let served = PoolServer::start(&["--workers", "1"]).await;
            let pool = served.pool().start().await.unwrap();
            let running = tokio::spawn(routines::rest(60_000).on(&pool));
            tokio::time::sleep(Duration::from_millis(500)).await;
            let began = Instant::now();
            if is_second {
                served.interrupt();
                tokio::time::sleep(Duration::from_millis(500)).await;
                assert!(!served.is_over(), "the server waits for calls");
                served.interrupt();
            } else {
                served.terminate();
            }
            assert_eq!(running.await.unwrap(), Err(CallError::Cancelled));
            served.assert_ends(0).await;
            assert!(
                began.elapsed() < Duration::from_secs(5),
                "{:?}",
                began.elapsed()
            );
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn exits_after_max_uptime_when_the_last_call_ends() {
    within(120, async {
        let served = PoolServer::start(&["--workers", "2", "--max-uptime", "1s"]).await;
        let pool = served.pool().start().await.unwrap();
        let running = tokio::spawn(routines::rest(2500).on(&pool));
        tokio::time::sleep(Duration::from_millis(1800)).await;
        assert!(!served.is_over(), "a call is in flight");
        running.await.unwrap().unwrap();
        served.assert_ends(0).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sigkill_leaves_no_worker() {
    within(120, async {
        let served = PoolServer::start(&["--workers", "2"]).await;
        let workers: Vec<u32> = served.workers().iter().map(|worker| worker.pid).collect();
        assert_eq!(workers.len(), 2);
        signal(served.pid(), libc::SIGKILL);
        wait_until("the workers have ended", async || {
            workers.iter().all(|pid| !is_alive(*pid))
        })
        .await;
        wait_until("the workers are unpublished", async || {
            served.workers().is_empty()
        })
        .await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_during_startup_ends_the_server() {
    within(120, async {
        let world = ServerDir::new();
        let mut child = world.command(&["--workers", "4"]).spawn().unwrap();
        // How far the startup gets is left open.
        tokio::time::sleep(Duration::from_millis(120)).await;
        signal(child.id(), libc::SIGTERM);
        wait_until("the server has exited", async || {
            child.try_wait().unwrap().is_some()
        })
        .await;
        let found = raddle::discovery::LocalDiscovery::in_directory(
            world.path().join("raddle/pools"),
            "default",
        );
        assert!(found.unwrap().snapshot().is_empty());
    })
    .await;
}
