//! What becomes of calls where a link, or the threads of a worker, are at their limit.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use raddle::{Call, CallError, core::routine::Packed};

use crate::{
    pool,
    routines::{self, Point},
    started, within,
};

#[tokio::test(flavor = "multi_thread")]
async fn large_arguments_that_do_not_fit_harm_no_other_call() {
    within(30, async {
        let pool = started(1).await;
        let other = tokio::spawn(routines::rest(1000).on(&pool));
        tokio::time::sleep(Duration::from_millis(100)).await;
        // What does not fit is part of the message.
        let text = "x".repeat(2 << 20);
        let points = BTreeMap::from([("a", &text)]);
        let unfit: Call<Vec<Point>> = Call::new("flip", Packed::new(1).argument("points", &points));
        let error = unfit.on(&pool).await.unwrap_err();
        assert!(matches!(&error, CallError::Arguments(message) if message.contains("'points'")), "{error:.200}");
        assert_eq!(other.await.unwrap(), Ok(pool.workers()[0].pid));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_without_a_thread_left_says_so_at_once() {
    within(90, async {
        // As many as it has threads in all its sets, and some.
        let threads = 32 * std::thread::available_parallelism().map_or(2, usize::from).max(2);
        let pool = pool(1).limit(2 * threads).start().await.unwrap();
        let blocked: Vec<_> = (0..threads + 20).map(|_| tokio::spawn(routines::block(3600).on(&pool))).collect();
        let address = pool.workers()[0].address.clone();
        let refused = async || {
            // One that was let in just before the last thread was taken waits for it with others.
            let answer = tokio::time::timeout(Duration::from_secs(1), routines::add(1, 2).on(&pool)).await;
            let error = answer.ok()?.err()?;
            assert!(error.to_string().contains("does not want more") && !error.may_have_begun(), "{error}");
            Some(error)
        };
        // Until then it waits with others for threads, of which there are a few more at a time.
        while refused().await.is_none() {
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        let began = Instant::now();
        assert!(refused().await.is_some());
        assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
        assert!(raddle::pool::connection::ping(&address).await.unwrap().in_flight >= threads as u64);
        pool.stop().await;
        for call in blocked {
            let error = call.await.unwrap().unwrap_err();
            assert!(matches!(&error, CallError::Cancelled | CallError::NoWorkers(_)), "{error}");
        }
    })
    .await;
}
