//! Shutdown of Python workers, and their calls.

use std::time::{Duration, Instant};

use raddle::{CallError, WorkerPool, pool::worker::StopMode};
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

use crate::{
    block, durable, entries,
    python::{Python, Worker},
    sleep, wait_until, within,
};

/// A worker and a pool that calls it.
async fn start_worker_and_pool(python: &Python) -> (Worker, WorkerPool) {
    let worker = python.worker(&[]).await;
    let pool = durable(&python.workers()).await;
    (worker, pool)
}

#[tokio::test(flavor = "multi_thread")]
async fn stop_modes_cancel_or_wait() {
    within(120, async {
        let python = Python::new().await;
        let brief = StopMode::DrainFor(Duration::from_millis(300));
        for (patience, seconds, outcome, (ended, cancelled)) in [
            (StopMode::Cancel, 600.0, Err(CallError::Cancelled), (0, 1)),
            (brief, 600.0, Err(CallError::Cancelled), (0, 1)),
            (
                StopMode::DrainFor(Duration::from_secs(60)),
                0.5,
                Ok(0.5),
                (1, 0),
            ),
            (StopMode::Drain, 0.5, Ok(0.5), (1, 0)),
        ] {
            let (worker, pool) = start_worker_and_pool(&python).await;
            let call = tokio::spawn(sleep(seconds).on(&pool));
            worker.wait_for_in_flight(1).await;
            let reply = worker.control().stop(patience).await.unwrap();
            assert_eq!(
                (reply.ended, reply.cancelled),
                (ended, cancelled),
                "{patience:?}"
            );
            assert_eq!(call.await.unwrap(), outcome, "{patience:?}");
            assert_eq!(
                entries(&python.workers()),
                [""; 0],
                "the worker is unpublished"
            );
            assert!(worker.wait().await.success());
            wait_until("the pool drops the worker", async || {
                pool.workers().is_empty()
            })
            .await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn signals_stop_a_worker() {
    within(120, async {
        let python = Python::new().await;
        for (signals, seconds, outcome) in [
            (&[libc::SIGTERM][..], 600.0, Err(CallError::Cancelled)),
            (&[libc::SIGINT], 0.5, Ok(0.5)),
            (
                &[libc::SIGINT, libc::SIGINT],
                600.0,
                Err(CallError::Cancelled),
            ),
        ] {
            let (worker, pool) = start_worker_and_pool(&python).await;
            let call = tokio::spawn(sleep(seconds).on(&pool));
            worker.wait_for_in_flight(1).await;
            for signal in signals {
                worker.signal(*signal);
                wait_until("the worker is unpublished", async || {
                    entries(&python.workers()).is_empty()
                })
                .await;
            }
            assert_eq!(call.await.unwrap(), outcome, "{signals:?}");
            assert!(worker.wait().await.success());
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blocked_thread_does_not_delay_the_exit() {
    within(120, async {
        let python = Python::new().await;
        let (worker, pool) = start_worker_and_pool(&python).await;
        let call = tokio::spawn(block(600.0).on(&pool));
        worker.wait_for_in_flight(1).await;
        let began = Instant::now();
        worker.signal(libc::SIGTERM);
        assert_eq!(call.await.unwrap(), Err(CallError::Cancelled));
        assert!(worker.wait().await.success());
        assert!(
            began.elapsed() < Duration::from_secs(5),
            "{:?}",
            began.elapsed()
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_worker_loses_its_calls() {
    within(120, async {
        let python = Python::new().await;
        let (worker, pool) = start_worker_and_pool(&python).await;
        let call = tokio::spawn(sleep(600.0).on(&pool));
        worker.wait_for_in_flight(1).await;
        let began = Instant::now();
        worker.signal(libc::SIGKILL);
        let error = call.await.unwrap().unwrap_err();
        assert!(
            matches!(
                error,
                CallError::Lost {
                    may_have_begun: true,
                    ..
                }
            ),
            "{error:?}"
        );
        assert!(
            began.elapsed() < Duration::from_secs(2),
            "at once, and not after {:?}",
            began.elapsed()
        );
        assert!(!worker.wait().await.success());
        // Its entry is still published, and its address refuses connections.
        let error = sleep(0.0).on(&pool).await.unwrap_err();
        assert!(
            matches!(&error, CallError::NoWorkers(_)) && !error.may_have_begun(),
            "{error:?}"
        );
        // Another worker takes over.
        let other = python.worker(&[]).await;
        wait_until("the pool knows both", async || pool.workers().len() == 2).await;
        for _ in 0..4 {
            assert_eq!(sleep(0.0).on(&pool).await, Ok(0.0));
        }
        assert_eq!(other.control().info().await.unwrap().taken, 4);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_its_health() {
    within(120, async {
        let python = Python::new().await;
        let (worker, pool) = start_worker_and_pool(&python).await;
        let endpoint =
            tonic::transport::Endpoint::from_shared(format!("http://{}", worker.address)).unwrap();
        let mut health = HealthClient::new(endpoint.connect().await.unwrap());
        let request = || HealthCheckRequest {
            service: "raddle.v1.Worker".into(),
        };
        let status = health.check(request()).await.unwrap().into_inner().status();
        assert_eq!(status, ServingStatus::Serving);
        let call = tokio::spawn(sleep(3.0).on(&pool));
        worker.wait_for_in_flight(1).await;
        worker.signal(libc::SIGINT);
        wait_until("the worker is unpublished", async || {
            entries(&python.workers()).is_empty()
        })
        .await;
        let began = Instant::now();
        while health.check(request()).await.unwrap().into_inner().status() == ServingStatus::Serving
        {
            assert!(
                began.elapsed() < Duration::from_secs(1),
                "the health status changes"
            );
        }
        assert_eq!(call.await.unwrap(), Ok(3.0));
        assert!(worker.wait().await.success());
    })
    .await;
}
