//! Workers that a discovery tells of and that are not there, or have more to say of themselves than they need: those that are there are called all the same.

use std::{
    net::TcpListener,
    time::{Duration, Instant},
};

use raddle::{
    WorkerPool,
    discovery::StaticDiscovery,
    pool::{WorkerMetadata, WorkerUid},
};

use crate::{routines, started, within};

fn told_of(address: impl ToString) -> WorkerMetadata {
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

async fn durable(workers: impl IntoIterator<Item = WorkerMetadata>) -> WorkerPool {
    WorkerPool::builder()
        .discovery(StaticDiscovery::new(workers))
        .start()
        .await
        .unwrap()
}

/// All of it together would never go into a call.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_said_of_many_does_not_travel_with_every_call() {
    within(120, async {
        let real = started(1).await;
        let talkative = || {
            let tags = (0..64).map(|n| format!("{n:064}")).collect();
            // Where nobody listens.
            WorkerMetadata {
                tags,
                ..told_of("127.0.0.1:1")
            }
        };
        let crowd = std::iter::repeat_with(talkative)
            .take(400)
            .chain(real.workers());
        let pool = durable(crowd).await;
        assert_eq!(routines::add(1, 2).on(&pool).await, Ok(3));
        // Who has taken a call is among those that routines are told of, however many there are.
        assert_eq!(routines::nested(2).on(&pool).await, Ok(2));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn those_who_say_nothing_cost_a_call_one_wait_and_not_one_each() {
    within(120, async {
        let real = started(1).await;
        // The system connects, and nobody says anything.
        let silent: Vec<_> = (0..20)
            .map(|_| TcpListener::bind("127.0.0.1:0").unwrap())
            .collect();
        let crowd = silent
            .iter()
            .map(|listener| told_of(listener.local_addr().unwrap()));
        let pool = durable(crowd.chain(real.workers())).await;
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
