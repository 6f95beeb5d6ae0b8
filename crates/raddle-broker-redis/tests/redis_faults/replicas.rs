//! Replicas: `wait_replicas`, and failovers by a sentinel.

use std::{
    fs,
    sync::Arc,
    time::{Duration, Instant},
};

use raddle_broker::{AttemptStarted, Broker, CompletionOutcome, Error, TaskFilter};
use raddle_model::TaskState;

use super::{
    redis_server::{Server, wait_until},
    support::*,
};

/// A master, its replica, and a sentinel that monitors them.
struct Watched {
    master: Server,
    replica: Server,
    sentinel: Server,
    _directory: tempfile::TempDir,
}

impl Watched {
    fn start() -> Self {
        let master = Server::start();
        let replica = master.replica();
        let directory = tempfile::tempdir().unwrap();
        let config = directory.path().join("sentinel.conf");
        let lines = [
            format!("sentinel monitor main 127.0.0.1 {} 1", master.port),
            "sentinel down-after-milliseconds main 300".into(),
            "sentinel failover-timeout main 3000".into(),
        ];
        fs::write(&config, lines.join("\n")).unwrap();
        let sentinel = Server::sentinel(&config);
        wait_until("the sentinel knows the replica", || {
            sentinel
                .command(&["SENTINEL", "replicas", "main"])
                .contains(&replica.port.to_string())
        });
        Self {
            master,
            replica,
            sentinel,
            _directory: directory,
        }
    }

    fn url(&self, more: &str) -> String {
        // The first sentinel does not exist, so the second is used.
        format!(
            "redis+sentinel://127.0.0.1:1,127.0.0.1:{}/main/0?namespace=x{more}",
            self.sentinel.port
        )
    }
}

/// The master is killed while tasks are submitted and run: with `wait_replicas` no acknowledged
/// task is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_continues_after_a_sentinel_failover() {
    let watched = Watched::start();
    let error = open_error(&watched.url("").replace("/main/", "/other/")).await;
    assert!(
        matches!(error, Error::Unreachable { .. }) && error.to_string().contains("'other'"),
        "{error}"
    );
    let broker =
        open(&watched.url("&wait_replicas=1&max=200ms&response_timeout=500ms&give_up_after=6s"))
            .await
            .unwrap();
    let health = broker.health().await.unwrap();
    assert!(
        health.durability.contains("until 1 replicas have them"),
        "{}",
        health.durability
    );
    assert!(
        health
            .checks
            .iter()
            .any(|check| check.detail == "role master, 1 replicas"),
        "{health:?}"
    );

    let worker = broker
        .register(info(), Duration::from_secs(60))
        .await
        .unwrap();
    let running = broker.submit(vec![task("running")]).await.unwrap()[0].tid();
    let attempt_id = broker.claim(request(worker, 1)).await.unwrap()[0].attempt_id;
    broker
        .mark_started(vec![AttemptStarted {
            attempt_id,
            pid: None,
        }])
        .await
        .unwrap();
    let waiting = tokio::spawn({
        let broker = Arc::clone(&broker);
        let other = broker
            .register(info(), Duration::from_secs(60))
            .await
            .unwrap();
        async move {
            broker
                .claim(request(other, 100))
                .await
                .map(|claims| (other, claims))
        }
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    watched.master.kill();
    let killed_at = Instant::now();
    // A waiting claim must find the new master by itself.
    let late = broker.submit((0..20).map(|_| task("late")).collect()).await;
    // No replica is left: the task is stored, and the error says so.
    let error = late.unwrap_err();
    assert!(
        matches!(error, Error::Unconfirmed { .. }),
        "{error} after {:?}",
        killed_at.elapsed()
    );
    let (other, claims) = tokio::time::timeout(SOON, waiting)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    assert!(!claims.is_empty());
    let plain = open(&watched.url("")).await.unwrap();
    assert_eq!(
        plain.complete(vec![success(attempt_id)]).await.unwrap(),
        [CompletionOutcome::Finished(TaskState::Completed)]
    );
    let mut claimed = claims.len();
    while claimed < 20 {
        claimed += plain.claim(request(other, 100)).await.unwrap().len();
    }
    let stored_tids = plain.tasks(TaskFilter::default()).await.unwrap();
    assert_eq!(stored_tids.len(), 21, "no task is lost or stored twice");
    assert!(
        stored_tids
            .iter()
            .any(|task| task.tid == running && task.state == TaskState::Completed)
    );
    assert!(
        watched
            .replica
            .command(&["INFO", "replication"])
            .contains("role:master")
    );
}

/// The sentinel names the killed master for a moment.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connecting_during_a_failover_waits() {
    let watched = Watched::start();
    watched.master.kill();
    let broker = open(&watched.url("&max=100ms")).await.unwrap();
    broker.submit(vec![task("new")]).await.unwrap();
    assert!(
        watched
            .replica
            .command(&["INFO", "replication"])
            .contains("role:master")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_waits_for_replicas_and_reports_missing_ones() {
    let master = Server::start();
    let url = format!(
        "{}&wait_replicas=1&response_timeout=2s&max=50ms",
        master.url("x")
    );
    let broker = open(&format!("{url}&give_up_after=300ms")).await.unwrap();
    let count =
        async |broker: &dyn Broker| broker.tasks(TaskFilter::default()).await.unwrap().len();

    let error = broker.submit(vec![task("alone")]).await.unwrap_err();
    assert!(
        matches!(error, Error::Unconfirmed { .. }) && !error.is_retryable(),
        "{error}"
    );
    assert!(
        error.to_string().contains("0 of 1 replicas have it"),
        "{error}"
    );
    assert_eq!(
        count(&*broker).await,
        1,
        "the task is stored once, although the call was repeated"
    );

    let replica = master.replica();
    let patient = open(&format!("{url}&give_up_after=20s")).await.unwrap();
    patient.submit(vec![task("together")]).await.unwrap();
    wait_until("the replica has both", || {
        replica
            .command(&["HLEN", "raddle:{x}:specs"])
            .ends_with(":2")
    });

    replica.signal("STOP");
    let error = broker.submit(vec![task("stopped")]).await.unwrap_err();
    assert!(matches!(error, Error::Unconfirmed { .. }), "{error}");
    // With a longer timeout the write only takes longer.
    let submitting = tokio::spawn({
        let patient = Arc::clone(&patient);
        async move { patient.submit(vec![task("late")]).await }
    });
    tokio::time::sleep(Duration::from_millis(700)).await;
    assert!(!submitting.is_finished());
    replica.signal("CONT");
    tokio::time::timeout(SOON, submitting)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    assert_eq!(count(&*broker).await, 4);
}
