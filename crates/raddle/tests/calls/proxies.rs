//! What a worker keeps to call others: made with the first call, kept for a while, and let go of.

use std::time::{Duration, Instant};

use raddle::pool::worker::LocalWorker;

use crate::{CALLEE, pool, routines, until, watches::watches, within};

const TTL: Duration = Duration::from_secs(1);

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_that_no_routine_needs_is_let_go_of_and_made_again() {
    within(120, async {
        let brief = |tags: &_| LocalWorker::new(tags).program(CALLEE).proxy_pool_ttl(TTL);
        let (brief, usual) = (
            pool(1).worker(brief).start().await.unwrap(),
            pool(1).start().await.unwrap(),
        );
        let (pid, other) = (brief.workers()[0].pid, usual.workers()[0].pid);
        assert_eq!(routines::add(1, 2).on(&brief).await, Ok(3));
        assert!(
            watches(pid).is_empty(),
            "nothing is made for who calls nobody"
        );
        assert_eq!(routines::nested(1).on(&usual).await, Ok(1));
        for _ in 0..2 {
            // For as long as it is needed it is the same.
            assert_eq!(routines::nested(1).on(&brief).await, Ok(1));
            let kept = watches(pid);
            assert_eq!(kept.len(), 1);
            let mut needed = Instant::now();
            let began = needed;
            while began.elapsed() < TTL * 2 {
                tokio::time::sleep(TTL / 5).await;
                assert_eq!(watches(pid), kept, "after {:?}", needed.elapsed());
                assert_eq!(routines::nested(1).on(&brief).await, Ok(1));
                needed = Instant::now();
            }
            until("it is let go of", async || watches(pid).is_empty()).await;
            assert!(
                needed.elapsed() > TTL.mul_f64(0.9),
                "{:?}",
                needed.elapsed()
            );
            assert!(needed.elapsed() < TTL * 3, "{:?}", needed.elapsed());
        }
        assert_eq!(
            watches(other).len(),
            1,
            "where nothing is said it is kept for longer"
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_takes_longer_than_its_proxy_is_kept_goes_on() {
    within(120, async {
        let brief = |tags: &_| {
            LocalWorker::new(tags)
                .program(CALLEE)
                .proxy_pool_ttl(Duration::from_millis(200))
        };
        let pool = pool(1).worker(brief).start().await.unwrap();
        let pid = pool.workers()[0].pid;
        let call = tokio::spawn(routines::rest_below(1500).on(&pool));
        until("it is made", async || !watches(pid).is_empty()).await;
        until("it is let go of", async || watches(pid).is_empty()).await;
        assert!(!call.is_finished());
        assert_eq!(call.await.unwrap(), Ok(pid));
    })
    .await;
}
