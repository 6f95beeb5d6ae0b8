//! Many clients at once: the point of it all.

use std::{fs, path::Path};

use raddle_broker::{Error, LeaseStatus, NewTask};
use raddle_broker_remote::{Options, Remote};
use raddle_model::{TaskSpec, worker::Heartbeat};
use tokio::task::JoinSet;

use crate::support::*;

/// How often this process has the database open.
fn opened(database: &Path) -> usize {
    let links = fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(|entry| fs::read_link(entry.unwrap().path()).ok());
    links.filter(|link| link == database).count()
}

#[tokio::test]
async fn a_thousand_short_clients_cost_no_database_connections() {
    let served = Served::start(Engine::Sqlite);
    let database = served.directory().join("broker.db");
    let before = opened(&database);
    let mut clients = JoinSet::new();
    for n in 0..1000 {
        let path = served.path();
        clients.spawn(async move {
            // As a one-shot worker does: it comes, runs what it finds, and leaves.
            let broker = remote(&path).await;
            let owner = broker.register(info(), TTL).await.unwrap();
            broker
                .submit(vec![NewTask::new(TaskSpec::command([
                    "true",
                    &n.to_string(),
                ]))])
                .await
                .unwrap();
            let claims = broker.claim(request(owner, SOON)).await.unwrap();
            assert_eq!(claims.len(), 1);
            broker.deregister(owner, None).await.unwrap();
        });
        // As many at a time as this process may have files open, as it has both ends.
        while clients.len() >= 200 {
            clients.join_next().await.unwrap().unwrap();
            assert_eq!(opened(&database), before);
        }
    }
    while let Some(client) = clients.join_next().await {
        client.unwrap();
    }
    assert_eq!(opened(&database), before);
}

#[tokio::test]
async fn many_hearts_share_one_database_connection() {
    let served = Served::start(Engine::Sqlite);
    let database = served.directory().join("broker.db");
    let before = opened(&database);
    let broker = remote(served.path()).await;
    let mut hearts = Vec::new();
    for _ in 0..100 {
        let owner = broker.register(info(), TTL).await.unwrap();
        hearts.push(broker.lease_renewer(owner, TTL));
    }
    let beating = std::thread::spawn(move || {
        for _ in 0..3 {
            for renewer in &mut hearts {
                assert!(matches!(
                    renewer.renew(Heartbeat::default()),
                    Ok(LeaseStatus::Alive(_))
                ));
            }
        }
        hearts
    });
    let hearts = tokio::task::spawn_blocking(|| beating.join().unwrap())
        .await
        .unwrap();
    assert!(
        opened(&database) <= before + 1,
        "{} for {}",
        opened(&database),
        hearts.len()
    );
}

#[tokio::test]
async fn a_client_too_many_is_told_to_come_later() {
    let mut options = Options::default();
    options.connections = 2;
    let served = Served::start_with(Engine::Memory, options);
    let (first, _second) = (remote(served.path()).await, remote(served.path()).await);
    let error = Remote::connect(&served.path()).await.err().unwrap();
    assert!(
        matches!(error, Error::AgentGone { .. }) && error.is_retryable(),
        "{error}"
    );
    assert!(
        error
            .to_string()
            .contains("as many connections as it can"),
        "{error}"
    );
    drop(first);
    until("a place is free", async || {
        Remote::connect(&served.path()).await.ok()
    })
    .await;
}
