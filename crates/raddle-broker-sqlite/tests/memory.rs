//! The conformance suite on the SQLite engine in memory.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use raddle_broker::{
    ClaimRequest, NewTask, OutputStream, conformance,
    conformance::{Fixture, Handle},
};
use raddle_broker_sqlite::Sqlite;
use raddle_model::{CapSet, TaskSpec};

/// A broker in memory has no path to open again: the second handle is the first.
struct InMemory(Handle);

#[async_trait]
impl Fixture for InMemory {
    fn broker(&self) -> &Handle {
        &self.0
    }

    async fn reopen(&self) -> Handle {
        self.0.clone()
    }
}

async fn make() -> InMemory {
    InMemory(Arc::new(
        Sqlite::in_memory().await.expect("there is memory"),
    ))
}

conformance!(make);

#[tokio::test]
async fn two_brokers_share_nothing() {
    let (one, other) = (make().await.0, make().await.0);
    let tid = one
        .submit(vec![NewTask::new(TaskSpec::command(["true"]))])
        .await
        .expect("there is room")[0]
        .tid();
    assert!(one.task(tid).await.expect("the broker answers").is_some());
    assert!(other.task(tid).await.expect("the broker answers").is_none());
}

#[tokio::test]
async fn dropping_the_broker_removes_large_output() {
    let broker = make().await.0;
    broker
        .submit(vec![NewTask::new(TaskSpec::command(["true"]))])
        .await
        .expect("there is room");
    let owner = broker
        .register(conformance::info("worker"), Duration::from_secs(120))
        .await
        .expect("the broker answers");
    let queues = vec!["default".into()];
    let request = ClaimRequest {
        owner,
        caps: CapSet::new(),
        queues,
        only: None,
        max: 1,
        wait: Duration::ZERO,
    };
    let attempt_id = broker.claim(request).await.expect("the broker answers")[0].attempt_id;
    broker
        .append_output(attempt_id, OutputStream::Stdout, vec![b'x'; 1000])
        .await
        .expect("there is room");
    let file = format!("{}.1.out", attempt_id.tid);
    let mut directories = std::fs::read_dir(std::env::temp_dir())
        .expect("the temporary directory exists")
        .flatten();
    let directory = directories
        .find(|entry| entry.path().join(&file).exists())
        .expect("the output file exists")
        .path();
    drop(broker);
    let deadline = Instant::now() + Duration::from_secs(20);
    while directory.exists() {
        assert!(Instant::now() < deadline, "{} is left", directory.display());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
