//! Workers on a real broker, without the command line.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{sync::Arc, time::Duration};

use raddle_broker::Error;
use raddle_broker_connect::{BrokerUrl, connect};
use raddle_broker_remote::BrokerServer;
use raddle_broker_sqlite::Sqlite;
use raddle_worker::{Options, Shutdown, Worker, worker::WorkerEndReason};
use tokio::{
    sync::oneshot,
    time::{Instant, timeout},
};

const DEADLINE: Duration = Duration::from_secs(90);

/// A broker agent, and a worker that uses it.
async fn behind_an_agent(
    dir: &tempfile::TempDir,
    give_up_after: Duration,
) -> (Worker, impl AsyncFnOnce()) {
    let path = dir.path().join("agent.sock");
    let agent = BrokerServer::bind(&path, Arc::new(Sqlite::in_memory().await.unwrap()))
        .await
        .unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let serving = tokio::spawn(agent.run(async { drop(stopped.await) }));
    let broker = connect(&BrokerUrl::Unix(path)).await.unwrap();
    let worker = Worker::register(
        broker,
        Options {
            give_up_after,
            ..Options::resident()
        },
    )
    .await
    .unwrap();
    let leave = async move || {
        drop(stop);
        serving.await.unwrap();
    };
    (worker, leave)
}

#[tokio::test]
async fn a_worker_exits_when_its_agent_stays_unreachable() {
    let dir = tempfile::tempdir().unwrap();
    let patience = Duration::from_millis(700);
    let (worker, leave) = behind_an_agent(&dir, patience).await;
    leave().await;
    let began = Instant::now();
    let ended = timeout(DEADLINE, worker.run(Shutdown::new()))
        .await
        .unwrap();
    assert!(matches!(ended, Err(Error::AgentGone { .. })), "{ended:?}");
    assert!(began.elapsed() >= patience, "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_worker_that_waits_for_its_agent_can_be_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let (worker, leave) = behind_an_agent(&dir, DEADLINE * 100).await;
    leave().await;
    let shutdown = Shutdown::new();
    let working = tokio::spawn(worker.run(shutdown.clone()));
    (0..3).for_each(|_| shutdown.request());
    let ended = timeout(DEADLINE, working).await.unwrap().unwrap().unwrap();
    assert_eq!((ended.reason, ended.tasks), (WorkerEndReason::Stopped, 0));
}
