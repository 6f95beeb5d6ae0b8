//! Servers that have replicas: waiting for those, and what a sentinel makes of one when the master dies.

use std::{
    fs,
    sync::Arc,
    time::{Duration, Instant},
};

use raddle_broker::{AttemptStarted, Broker, CompletionOutcome, Error, TaskFilter};
use raddle_model::TaskState;

use super::{
    redis_server::{Server, until},
    support::*,
};

/// A master, its replica, and a sentinel that watches them.
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
        until("the sentinel knows the replica", || {
            sentinel
                .ask(&["SENTINEL", "replicas", "main"])
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
        // The first is not there, and the next is asked.
        format!(
            "redis+sentinel://127.0.0.1:1,127.0.0.1:{}/main/0?namespace=x{more}",
            self.sentinel.port
        )
    }
}

/// The master is killed while tasks are submitted and run: with `wait_replicas` nothing that was acknowledged is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_goes_on_when_a_sentinel_makes_a_replica_the_master() {
    let watched = Watched::start();
    let error = refusal(&watched.url("").replace("/main/", "/other/")).await;
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
    // One whose claim waits has to find the new master by itself.
    let late = broker.submit((0..20).map(|_| task("late")).collect()).await;
    // There is no replica any more that could have it: it is stored, and that is said.
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
    let there = plain.tasks(TaskFilter::default()).await.unwrap();
    assert_eq!(
        there.len(),
        21,
        "nothing is lost, and nothing is there twice"
    );
    assert!(
        there
            .iter()
            .any(|task| task.tid == running && task.state == TaskState::Completed)
    );
    assert!(
        watched
            .replica
            .ask(&["INFO", "replication"])
            .contains("role:master")
    );
}

/// The sentinel still names the master that was killed, and needs a moment to name another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_that_starts_during_a_failover_waits_for_it() {
    let watched = Watched::start();
    watched.master.kill();
    let broker = open(&watched.url("&max=100ms")).await.unwrap();
    broker.submit(vec![task("new")]).await.unwrap();
    assert!(
        watched
            .replica
            .ask(&["INFO", "replication"])
            .contains("role:master")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_waits_for_its_replicas_and_says_what_is_missing() {
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
        "it is there, once, though it was asked for again and again"
    );

    let replica = master.replica();
    let patient = open(&format!("{url}&give_up_after=20s")).await.unwrap();
    patient.submit(vec![task("together")]).await.unwrap();
    until("the replica has both", || {
        replica.ask(&["HLEN", "raddle:{x}:spec"]).ends_with(":2")
    });

    replica.signal("STOP");
    let error = broker.submit(vec![task("stopped")]).await.unwrap_err();
    assert!(matches!(error, Error::Unconfirmed { .. }), "{error}");
    // With more patience it is only late.
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
