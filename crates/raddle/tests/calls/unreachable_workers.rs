//! Workers that a discovery tells of and that are not there, or have more to say of themselves than they need: those that are there are called all the same.

use std::{
    net::TcpListener,
    time::{Duration, Instant},
};

use raddle::{
    WorkerPool,
    pool::{WorkerMetadata, WorkerUid, discovery::StaticDiscovery},
};

use crate::{routines, start_pool, within};

fn metadata_at(address: impl ToString) -> WorkerMetadata {
    WorkerMetadata {
        uid: WorkerUid::new(),
        address: address.to_string(),
        pid: 1,
        version: "1".into(),
        tags: [].into(),
        extra: [].into(),
        secure: false,
        encodings: [].into(),
    }
}

async fn durable_pool(workers: impl IntoIterator<Item = WorkerMetadata>) -> WorkerPool {
    WorkerPool::builder()
        .discovery(StaticDiscovery::new(workers))
        .start()
        .await
        .unwrap()
}

/// All of it together would never go into a call.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_carries_no_metadata_of_unreachable_workers() {
    within(120, async {
        let real = start_pool(1).await;
        let verbose_worker = || {
            let tags = (0..64).map(|n| format!("{n:064}")).collect();
            // Where nobody listens.
            WorkerMetadata {
                tags,
                ..metadata_at("127.0.0.1:1")
            }
        };
        let workers = std::iter::repeat_with(verbose_worker)
            .take(400)
            .chain(real.workers());
        let pool = durable_pool(workers).await;
        assert_eq!(routines::add(1, 2).on(&pool).await, Ok(3));
        // Who has taken a call is among those that routines are told of, however many there are.
        assert_eq!(routines::nested(2).on(&pool).await, Ok(2));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_workers_cost_a_call_one_timeout_in_total() {
    within(120, async {
        let real = start_pool(1).await;
        // The system connects, and nobody says anything.
        let silent: Vec<_> = (0..20)
            .map(|_| TcpListener::bind("127.0.0.1:0").unwrap())
            .collect();
        let workers = silent
            .iter()
            .map(|listener| metadata_at(listener.local_addr().unwrap()));
        let pool = durable_pool(workers.chain(real.workers())).await;
        for call in 0..30 {
            let began = Instant::now();
            assert_eq!(routines::add(call, 2).on(&pool).await, Ok(call + 2));
            // One by one, the first would take 20 s.
            assert!(
                began.elapsed() < Duration::from_secs(8),
                "call {call}: {:?}",
                began.elapsed()
            );
        }
    })
    .await;
}
