//! Discovery by the registry of a broker: a SQLite file and a Redis server.

use std::{sync::Arc, time::Duration};

use raddle::{
    WorkerPool,
    broker::{Broker, connect},
    discovery::BrokerDiscovery,
    pool::WorkerMetadata,
};

use crate::{
    CALLEE,
    redis_server::Server,
    routines,
    server::{PoolServer, ServerDir, signal},
    wait_until, within,
};

async fn registry(url: &str) -> Arc<dyn Broker> {
    connect(&url.parse().unwrap()).await.unwrap()
}

/// Starts a server that publishes its workers in this broker.
async fn serve(url: &str, args: &[&str]) -> PoolServer {
    let world = ServerDir::new();
    let command = world.command(
        &[
            &["--json", "--queue-url", url, "--discovery", "broker"],
            args,
        ]
        .concat(),
    );
    PoolServer::start_command(world, command).await
}

/// Workers start, are replaced, stop and die, and a pool follows the registry.
async fn test_registry(url: &str) {
    let broker = registry(url).await;
    let discovery = BrokerDiscovery::new("math", Arc::clone(&broker)).unwrap();
    let pool = WorkerPool::builder()
        .discovery(discovery)
        .start()
        .await
        .unwrap();
    assert!(pool.workers().is_empty(), "there are no workers yet");
    let serving = [
        "--name",
        "math",
        "--workers",
        "2",
        "--bind",
        "127.0.0.1:0",
        "--tags",
        "gpu",
    ];
    let served = serve(url, &serving).await;
    let other = serve(
        url,
        &["--name", "else", "--workers", "1", "--bind", "127.0.0.1:0"],
    )
    .await;
    wait_until("both workers are found", async || pool.workers().len() == 2).await;
    let as_published = |mut workers: Vec<WorkerMetadata>| {
        workers.sort_by_key(|worker| worker.uid);
        workers
    };
    assert_eq!(as_published(pool.workers()), as_published(served.workers()));
    assert_eq!(routines::add(1, 2).on(&pool).await, Ok(3));

    let entries = broker.workers().await.unwrap();
    assert_eq!(entries.len(), 3);
    for entry in entries.iter().filter(|entry| entry.info.name == "math") {
        let callee = entry.info.callee.as_deref().unwrap();
        assert!(
            callee.routines.contains("add") && callee.encodings.contains("json"),
            "{callee:?}"
        );
        assert_eq!(
            (
                entry.info.kind.as_str(),
                callee.tags.contains("gpu"),
                callee.secure
            ),
            ("pool", true, false)
        );
    }

    // A killed worker is replaced.
    let killed = routines::pid().on(&pool).await.unwrap();
    signal(killed, libc::SIGKILL);
    let is_replaced = async || {
        pool.workers().len() == 2 && pool.workers().iter().all(|worker| worker.pid != killed)
    };
    wait_until("the replacement is found", is_replaced).await;

    // Entries of stopped workers disappear at once, those of a killed server with its lease.
    other.interrupt().assert_ends(0).await;
    assert_eq!(broker.workers().await.unwrap().len(), 2);
    signal(served.pid(), libc::SIGKILL);
    wait_until("the workers are dropped", async || {
        pool.workers().is_empty()
    })
    .await;
    assert!(broker.workers().await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn finds_workers_in_sqlite() {
    within(120, async {
        let directory = tempfile::tempdir().unwrap();
        test_registry(&format!(
            "sqlite:{}",
            directory.path().join("raddle.db").display()
        ))
        .await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn finds_workers_in_redis() {
    within(120, async {
        let server = Server::start();
        test_registry(&server.url("calls")).await;
    })
    .await;
}

/// The pool keeps its workers, and the workers register again.
#[tokio::test(flavor = "multi_thread")]
async fn workers_survive_a_broker_outage() {
    within(120, async {
        let server = Server::start();
        let url = server.url("calls");
        let served = serve(
            &url,
            &["--name", "math", "--workers", "1", "--bind", "127.0.0.1:0"],
        )
        .await;
        let discovery = BrokerDiscovery::new("math", registry(&url).await).unwrap();
        let pool = WorkerPool::builder()
            .discovery(discovery)
            .start()
            .await
            .unwrap();
        assert_eq!(pool.workers(), served.workers());
        server.kill();
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(
            routines::add(1, 2).on(&pool).await,
            Ok(3),
            "calls need no broker"
        );
        server.restart();
        let before = pool.workers();
        wait_until("the worker is registered again", async || {
            registry(&url)
                .await
                .workers()
                .await
                .is_ok_and(|workers| workers.len() == 1)
        })
        .await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(pool.workers(), before);
        served.interrupt().assert_ends(0).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn worker_list_shows_pool_workers() {
    within(120, async {
        let directory = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", directory.path().join("raddle.db").display());
        let served = serve(
            &url,
            &["--name", "math", "--workers", "1", "--bind", "127.0.0.1:0"],
        )
        .await;
        let worker = served.workers().remove(0);
        let run = |args: &[&str]| {
            let mut command = std::process::Command::new(CALLEE);
            let output = command
                .args(args)
                .env("QUEUE_URL", &url)
                .current_dir(directory.path())
                .output()
                .unwrap();
            let [out, err] =
                [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
            (output.status.code().unwrap(), out, err)
        };
        let (code, listed, _) = run(&["worker", "list"]);
        let row: Vec<&str> = listed.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(
            (code, &row[1..6]),
            (0, &["math", "pool", "active", "-", "-"][..]),
            "{listed}"
        );
        let tid = row[0];
        let (code, listed, _) = run(&["worker", "list", "--json"]);
        let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
        assert_eq!(
            (code, &listed[0]["callee"]["address"]),
            (0, &worker.address.as_str().into())
        );
        // Pool workers take no control commands from the broker.
        let (code, _, message) = run(&["worker", "stop", tid]);
        let uid = worker.uid.to_string();
        assert!(
            code == 2
                && message.contains(&format!("raddle pool stop --discovery broker:math {uid}")),
            "{message}"
        );
        let (code, ..) = run(&["worker", "stop", "--all"]);
        assert!(code == 0 && !served.is_over());
        // With the command of the message. The server replaces the worker, because it was not
        // stopped itself.
        let (code, stopped, message) = run(&["pool", "stop", "--discovery", "broker:math", &uid]);
        assert_eq!(
            (code, stopped),
            (0, format!("{uid} stopped, 0 calls ended, 0 cancelled\n")),
            "{message}"
        );
        wait_until("a replacement is published", async || {
            let now = served.workers();
            now.len() == 1 && now[0].uid != worker.uid
        })
        .await;
        served.interrupt().assert_ends(0).await;
    })
    .await;
}

#[test]
fn refuses_to_publish_unreachable_addresses() {
    let world = ServerDir::new();
    let url = format!("sqlite:{}", world.path().join("raddle.db").display());
    for discovery in ["broker", "file:workers"] {
        let open = [
            "--queue-url",
            &url,
            "--discovery",
            discovery,
            "--bind",
            "0.0.0.0:0",
            "--insecure",
        ];
        let message = world.run_refused(&open, 2);
        assert!(
            message.contains("'0.0.0.0:0', which other machines cannot use")
                && message.contains("--advertise"),
            "{message}"
        );
    }
    let message = world.run_refused(&["--queue-url", "mem://", "--discovery", "broker"], 2);
    assert!(message.contains("exists only in one process"), "{message}");
}
