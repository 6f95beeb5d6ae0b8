//! How it ends: when it is told to, when its time is over, and when it is killed.

use std::time::{Duration, Instant};

use raddle::CallError;

use crate::{
    routines,
    served::{Served, World, is_alive, signal},
    until, within,
};

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupt_waits_for_what_is_in_flight_and_takes_no_more() {
    within(120, async {
        let served = Served::start(&["--workers", "2"]).await;
        let pool = served.pool().start().await.unwrap();
        let running: Vec<_> = (0..4)
            .map(|_| tokio::spawn(routines::rest(2500).on(&pool)))
            .collect();
        tokio::time::sleep(Duration::from_millis(500)).await;
        served.interrupt();
        until("nobody is told of them any more", async || {
            served.workers().is_empty()
        })
        .await;
        // They are told to stop after that.
        let is_refused = async || {
            matches!(
                routines::add(1, 2).on(&pool).await,
                Err(CallError::NoWorkers(_))
            )
        };
        until("no more is taken", is_refused).await;
        assert!(!served.is_over(), "it waits");
        for call in running {
            call.await.unwrap().unwrap();
        }
        served.ends(0).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_interrupt_and_a_termination_cancel() {
    within(120, async {
        for is_second in [true, false] {
            let served = Served::start(&["--workers", "1"]).await;
            let pool = served.pool().start().await.unwrap();
            let running = tokio::spawn(routines::rest(60_000).on(&pool));
            tokio::time::sleep(Duration::from_millis(500)).await;
            let began = Instant::now();
            if is_second {
                served.interrupt();
                tokio::time::sleep(Duration::from_millis(500)).await;
                assert!(!served.is_over(), "it waits");
                served.interrupt();
            } else {
                served.terminate();
            }
            assert_eq!(running.await.unwrap(), Err(CallError::Cancelled));
            served.ends(0).await;
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
async fn who_has_served_for_long_enough_leaves_when_the_last_call_is_over() {
    within(120, async {
        let served = Served::start(&["--workers", "2", "--max-uptime", "1s"]).await;
        let pool = served.pool().start().await.unwrap();
        let running = tokio::spawn(routines::rest(2500).on(&pool));
        tokio::time::sleep(Duration::from_millis(1800)).await;
        assert!(!served.is_over(), "a call is in flight");
        running.await.unwrap().unwrap();
        served.ends(0).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_killed_leaves_no_worker_behind() {
    within(120, async {
        let served = Served::start(&["--workers", "2"]).await;
        let workers: Vec<u32> = served.workers().iter().map(|worker| worker.pid).collect();
        assert_eq!(workers.len(), 2);
        signal(served.pid(), libc::SIGKILL);
        until("they are gone", async || {
            workers.iter().all(|pid| !is_alive(*pid))
        })
        .await;
        until("nobody is told of them", async || {
            served.workers().is_empty()
        })
        .await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_before_all_serve_is_the_end_as_well() {
    within(120, async {
        let world = World::new();
        let mut child = world.command(&["--workers", "4"]).spawn().unwrap();
        // It may have come as far as it likes.
        tokio::time::sleep(Duration::from_millis(120)).await;
        signal(child.id(), libc::SIGTERM);
        until("it has ended", async || child.try_wait().unwrap().is_some()).await;
        let found = raddle::discovery::LocalDiscovery::in_directory(
            world.path().join("raddle/pools"),
            "default",
        );
        assert!(found.unwrap().snapshot().is_empty());
    })
    .await;
}
