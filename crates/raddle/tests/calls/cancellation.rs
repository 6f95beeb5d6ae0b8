//! Cancelled calls, and destructors that panic.

use std::time::Duration;

use raddle::{CallError, WorkerPool, pool::connection::ping};
use raddle_wire::v1::{self, exception::Kind, reply::What};

use crate::{CALLEE, pool, routines, wait_until, within};

/// Waits until a worker has no call in flight.
async fn wait_until_idle(pool: &WorkerPool) {
    let address = pool.workers()[0].address.clone();
    let is_idle = async {
        while ping(&address).await.expect("the worker answers").in_flight > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), is_idle)
        .await
        .expect("nothing is left in flight");
}

#[tokio::test(flavor = "multi_thread")]
async fn aborting_a_task_cancels_its_call_and_frees_its_permit() {
    within(120, async {
        let (pool, directory) = (
            pool(1).limit(1).start().await.unwrap(),
            tempfile::tempdir().unwrap(),
        );
        let pid = pool.workers()[0].pid;
        for n in 0..10 {
            let marker = directory.path().join(format!("{n}"));
            let call = if n % 2 == 0 {
                tokio::spawn(routines::hold(marker.clone()).on(&pool))
            } else {
                let mut items = routines::endless(marker.clone()).on(&pool);
                tokio::spawn(async move {
                    while items.next().await.is_some() {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                    Ok::<_, CallError>(())
                })
            };
            let address = pool.workers()[0].address.clone();
            while ping(&address).await.unwrap().in_flight == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            // The only permit is taken. A waiting call that is aborted must not keep one either.
            let waiting = tokio::spawn(routines::add(1, 2).on(&pool));
            tokio::time::sleep(Duration::from_millis(20)).await;
            assert!(!waiting.is_finished() && !marker.exists());
            waiting.abort();
            call.abort_handle().abort();
            assert!(
                waiting.await.unwrap_err().is_cancelled() && call.await.unwrap_err().is_cancelled()
            );
            wait_until("the destructor runs", async || marker.exists()).await;
            let next = routines::pid().on(&pool);
            assert_eq!(
                tokio::time::timeout(Duration::from_secs(10), next)
                    .await
                    .expect("there is room"),
                Ok(pid)
            );
        }
        wait_until_idle(&pool).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_survives_a_panic_in_a_destructor() {
    within(120, async {
        let (pool, directory) = (pool(1).limit(2).start().await.unwrap(), tempfile::tempdir().unwrap());
        let pid = pool.workers()[0].pid;
        // More often than there are permits or threads.
        for n in 0..20 {
            let marker = directory.path().join(format!("{n}"));
            let started = directory.path().join(format!("{n}-started"));
            let call = tokio::spawn(routines::hold_badly(started.clone(), marker.clone()).on(&pool));
            wait_until("the routine runs", async || started.exists()).await;
            call.abort();
            wait_until("the other destructor runs too", async || marker.exists()).await;
        }
        for n in 20..24 {
            let marker = directory.path().join(format!("{n}"));
            let started = directory.path().join(format!("{n}-started"));
            let call = routines::hold_badly(started, marker.clone()).timeout(Duration::from_millis(100));
            assert_eq!(call.on(&pool).await, Err(CallError::TimedOut));
            wait_until("the destructor runs", async || marker.exists()).await;
        }
        wait_until_idle(&pool).await;
        assert_eq!(routines::pid().on(&pool).await, Ok(pid), "the worker is the same");
        // Panics of the routine itself are still reported.
        let error = routines::explode("fun".into()).on(&pool).await;
        assert!(
            matches!(&error, Err(CallError::Panicked { message, .. }) if message == "exploded for fun"),
            "{error:?}"
        );
        let call = tokio::spawn(routines::hold_badly(directory.path().join("a"), directory.path().join("b")).on(&pool));
        wait_until("the routine runs", async || directory.path().join("a").exists()).await;
        pool.stop().await;
        assert_eq!(call.await.unwrap(), Err(CallError::Cancelled));
        assert!(!crate::is_alive(pid));
    })
    .await;
}

/// Clients without a timer learn of a timeout from the worker alone.
#[tokio::test(flavor = "multi_thread")]
async fn reports_a_timeout_even_if_the_routine_panics_on_drop() {
    within(120, async {
        let at_port = |tags: &_| {
            raddle::pool::worker::LocalWorker::new(tags)
                .program(CALLEE)
                .address_of("127.0.0.1:0")
        };
        let (pool, directory) = (
            pool(1).worker(at_port).start().await.unwrap(),
            tempfile::tempdir().unwrap(),
        );
        let (started, marker) = (
            directory.path().join("started"),
            directory.path().join("marker"),
        );
        let arguments = raddle::core::routine::EncodedArgs::new(2)
            .argument("started", &started)
            .argument("path", &marker);
        let call = v1::Call {
            protocol: 1,
            routine: "hold_badly".into(),
            arguments: arguments.finish().unwrap().into(),
            timeout_ms: 200,
            ..v1::Call::default()
        };
        let mut replies = crate::grpc_client::client(&pool)
            .await
            .dispatch(call)
            .await
            .unwrap()
            .into_inner();
        let mut last = None;
        let all = async {
            while let Some(reply) = replies.message().await.unwrap() {
                last = reply.what;
            }
        };
        tokio::time::timeout(Duration::from_secs(5), all)
            .await
            .expect("the worker says how it ended");
        assert!(
            matches!(&last, Some(What::Exception(thrown)) if thrown.kind() == Kind::TimedOut),
            "{last:?}"
        );
        wait_until("the destructors run", async || marker.exists()).await;
        wait_until_idle(&pool).await;
    })
    .await;
}
