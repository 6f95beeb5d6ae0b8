//! Workers that are found in the registry of a broker: a database of this machine, and a server that many have in common.

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
    served::{Served, World, signal},
    until, within,
};

async fn registry(url: &str) -> Arc<dyn Broker> {
    connect(&url.parse().unwrap()).await.unwrap()
}

/// Starts a program that serves, and is found by whoever has the same broker.
async fn serve(url: &str, args: &[&str]) -> Served {
    let world = World::new();
    let command = world.command(
        &[
            &["--json", "--queue-url", url, "--discovery", "broker"],
            args,
        ]
        .concat(),
    );
    Served::started(world, command).await
}

/// Workers come, are replaced, go and die, and whoever follows the registry hears of it.
async fn are_found(url: &str) {
    let broker = registry(url).await;
    let found = BrokerDiscovery::new("math", Arc::clone(&broker)).unwrap();
    let pool = WorkerPool::builder()
        .discovery(found)
        .start()
        .await
        .unwrap();
    assert!(pool.workers().is_empty(), "nobody is there yet");
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
    until("both are found", async || pool.workers().len() == 2).await;
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

    // One that is killed is replaced.
    let killed = routines::pid().on(&pool).await.unwrap();
    signal(killed, libc::SIGKILL);
    let is_replaced = async || {
        pool.workers().len() == 2 && pool.workers().iter().all(|worker| worker.pid != killed)
    };
    until("another is found", is_replaced).await;

    // Those that leave are gone at once, and those whose keeper is killed with their lease.
    other.interrupt().ends(0).await;
    assert_eq!(broker.workers().await.unwrap().len(), 2);
    signal(served.pid(), libc::SIGKILL);
    until("they are missed", async || pool.workers().is_empty()).await;
    assert!(broker.workers().await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_are_found_in_a_database() {
    within(120, async {
        let directory = tempfile::tempdir().unwrap();
        are_found(&format!(
            "sqlite:{}",
            directory.path().join("raddle.db").display()
        ))
        .await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_are_found_on_a_server() {
    within(120, async {
        let server = Server::start();
        are_found(&server.url("calls")).await;
    })
    .await;
}

/// What is known stays known, and workers enter themselves again.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_gone_for_a_while_takes_nobody_along() {
    within(120, async {
        let server = Server::start();
        let url = server.url("calls");
        let served = serve(
            &url,
            &["--name", "math", "--workers", "1", "--bind", "127.0.0.1:0"],
        )
        .await;
        let found = BrokerDiscovery::new("math", registry(&url).await).unwrap();
        let pool = WorkerPool::builder()
            .discovery(found)
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
        until("it is in the registry", async || {
            registry(&url)
                .await
                .workers()
                .await
                .is_ok_and(|workers| workers.len() == 1)
        })
        .await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(pool.workers(), before);
        served.interrupt().ends(0).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_looks_at_workers_sees_them_for_what_they_are() {
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
            let ran = command
                .args(args)
                .env("QUEUE_URL", &url)
                .current_dir(directory.path())
                .output()
                .unwrap();
            let [out, err] =
                [ran.stdout, ran.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
            (ran.status.code().unwrap(), out, err)
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
        // It takes no words from a broker.
        let (code, _, said) = run(&["worker", "stop", tid]);
        let uid = worker.uid.to_string();
        assert!(
            code == 2 && said.contains(&format!("raddle pool stop --discovery broker:math {uid}")),
            "{said}"
        );
        let (code, ..) = run(&["worker", "stop", "--all"]);
        assert!(code == 0 && !served.is_over());
        // As it says itself. Another takes its place, for its keeper was not asked.
        let (code, stopped, said) = run(&["pool", "stop", "--discovery", "broker:math", &uid]);
        assert_eq!(
            (code, stopped),
            (0, format!("{uid} stopped, 0 calls ended, 0 cancelled\n")),
            "{said}"
        );
        until("another is there", async || {
            let now = served.workers();
            now.len() == 1 && now[0].uid != worker.uid
        })
        .await;
        served.interrupt().ends(0).await;
    })
    .await;
}

#[test]
fn what_others_could_not_find_is_not_told_to_them() {
    let world = World::new();
    let url = format!("sqlite:{}", world.path().join("raddle.db").display());
    for how in ["broker", "file:workers"] {
        let open = [
            "--queue-url",
            &url,
            "--discovery",
            how,
            "--bind",
            "0.0.0.0:0",
            "--insecure",
        ];
        let said = world.refuses(&open, 2);
        assert!(
            said.contains("'0.0.0.0:0' is another place on every machine")
                && said.contains("--advertise"),
            "{said}"
        );
    }
    let said = world.refuses(&["--queue-url", "mem://", "--discovery", "broker"], 2);
    assert!(said.contains("exists only in one process"), "{said}");
}
