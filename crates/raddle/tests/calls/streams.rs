//! Streams: ordered, complete, flow-controlled, and cancelled when dropped.

use std::time::Duration;

use raddle::CallError;

use crate::{routines, start_pool, wait_until, within};

#[tokio::test(flavor = "multi_thread")]
async fn streams_deliver_all_items_in_order() {
    within(120, async {
        let pool = start_pool(1).await;
        for to in [0, 1, 255, 256, 257, 10_000] {
            let mut items = routines::count(to).on(&pool);
            for n in 0..to {
                assert_eq!(items.next().await, Some(Ok(n)));
            }
            assert_eq!(items.next().await, None);
            assert_eq!(items.next().await, None, "the stream stays ended");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn small_items_do_not_overtake_large_ones() {
    within(120, async {
        let pool = start_pool(1).await;
        let lengths: Vec<usize> = [1 << 20, 3, 100 << 10, 0, 5 << 20, 1].repeat(10);
        let mut items = routines::texts(lengths.clone()).on(&pool);
        for length in lengths {
            assert_eq!(
                items.next().await.map(|item| item.map(|text| text.len())),
                Some(Ok(length))
            );
        }
        assert_eq!(items.next().await, None);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unread_stream_waits_and_other_calls_continue() {
    within(120, async {
        let (pool, directory) = (start_pool(1).await, tempfile::tempdir().unwrap());
        let mut items = routines::endless(directory.path().join("marker")).on(&pool);
        assert_eq!(items.next().await, Some(Ok(0)));
        let cpu = || crate::shutdown::cpu_of(pool.workers()[0].pid);
        tokio::time::sleep(Duration::from_millis(300)).await;
        let before = cpu();
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert!(
            cpu() - before < Duration::from_millis(100),
            "the worker does not produce items without credit"
        );
        assert_eq!(routines::add(1, 2).on(&pool).await, Ok(3));
        assert_eq!(items.next().await, Some(Ok(1)));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dropping_a_stream_ends_it_on_the_worker() {
    within(120, async {
        let (pool, directory) = (start_pool(1).await, tempfile::tempdir().unwrap());
        let marker = directory.path().join("marker");
        let mut items = routines::endless(marker.clone()).on(&pool);
        for n in 0..1000 {
            assert_eq!(items.next().await, Some(Ok(n)));
        }
        drop(items);
        wait_until("the destructor runs", async || marker.exists()).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_is_the_last_item() {
    within(120, async {
        let pool = start_pool(1).await;
        let mut items = routines::bursting().on(&pool);
        for n in 0..3 {
            assert_eq!(items.next().await, Some(Ok(n)));
        }
        assert!(
            matches!(items.next().await, Some(Err(CallError::Panicked { message, .. })) if message == "burst at 3")
        );
        assert_eq!(items.next().await, None);
    })
    .await;
}
