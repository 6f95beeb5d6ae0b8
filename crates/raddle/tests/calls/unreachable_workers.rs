//! Discovery publishes workers that do not answer or have much metadata: reachable workers are
//! called all the same.

use std::{
    net::TcpListener,
    time::{Duration, Instant},
};

use raddle::{
    WorkerPool,
    discovery::StaticDiscovery,
    pool::{WorkerMetadata, WorkerUid},
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

/// The metadata of all of them would exceed the size of a call.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_carries_no_metadata_of_unreachable_workers() {
    within(120, async {
        let real = start_pool(1).await;
        let verbose_worker = || {
            let tags = (0..64).map(|n| format!("{n:064}")).collect();
            // No process listens there.
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
        // The worker that took a call is part of the route for nested calls, whatever their number.
        assert_eq!(routines::nested(2).on(&pool).await, Ok(2));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_workers_cost_a_call_one_timeout_in_total() {
    within(120, async {
        let real = start_pool(1).await;
        // The kernel accepts the connections, and no process answers.
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
            // One timeout per worker would take 20 s for the first call.
            assert!(
                began.elapsed() < Duration::from_secs(8),
                "call {call}: {:?}",
                began.elapsed()
            );
        }
    })
    .await;
}
