//! The proxy that a worker keeps for nested calls: created by the first, kept for its TTL, then
//! dropped.

use std::time::{Duration, Instant};

use raddle::pool::worker::LocalWorker;

use crate::{CALLEE, inotify::inotify_fds, pool, routines, wait_until, within};

const TTL: Duration = Duration::from_secs(1);

#[tokio::test(flavor = "multi_thread")]
async fn drops_an_unused_proxy_and_creates_it_again() {
    within(120, async {
        let brief = |tags: &_| LocalWorker::new(tags).program(CALLEE).proxy_pool_ttl(TTL);
        let (brief, usual) = (
            pool(1).worker(brief).start().await.unwrap(),
            pool(1).start().await.unwrap(),
        );
        let (pid, other) = (brief.workers()[0].pid, usual.workers()[0].pid);
        assert_eq!(routines::add(1, 2).on(&brief).await, Ok(3));
        assert!(inotify_fds(pid).is_empty(), "no proxy without nested calls");
        assert_eq!(routines::nested(1).on(&usual).await, Ok(1));
        for _ in 0..2 {
            // The proxy stays the same while it is used.
            assert_eq!(routines::nested(1).on(&brief).await, Ok(1));
            let kept = inotify_fds(pid);
            assert_eq!(kept.len(), 1);
            let mut needed = Instant::now();
            let began = needed;
            while began.elapsed() < TTL * 2 {
                tokio::time::sleep(TTL / 5).await;
                assert_eq!(inotify_fds(pid), kept, "after {:?}", needed.elapsed());
                assert_eq!(routines::nested(1).on(&brief).await, Ok(1));
                needed = Instant::now();
            }
            wait_until("the proxy is dropped", async || inotify_fds(pid).is_empty()).await;
            assert!(
                needed.elapsed() > TTL.mul_f64(0.9),
                "{:?}",
                needed.elapsed()
            );
            assert!(needed.elapsed() < TTL * 3, "{:?}", needed.elapsed());
        }
        assert_eq!(inotify_fds(other).len(), 1, "the default TTL is longer");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_outlives_the_ttl_of_its_proxy() {
    within(120, async {
        let brief = |tags: &_| {
            LocalWorker::new(tags)
                .program(CALLEE)
                .proxy_pool_ttl(Duration::from_millis(200))
        };
        let pool = pool(1).worker(brief).start().await.unwrap();
        let pid = pool.workers()[0].pid;
        let call = tokio::spawn(routines::rest_below(1500).on(&pool));
        wait_until("the proxy is created", async || {
            !inotify_fds(pid).is_empty()
        })
        .await;
        wait_until("the proxy is dropped", async || inotify_fds(pid).is_empty()).await;
        assert!(!call.is_finished());
        assert_eq!(call.await.unwrap(), Ok(pid));
    })
    .await;
}
