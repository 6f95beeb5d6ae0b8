//! Many clients share one server's database connections.

use std::{fs, path::Path};

use raddle_broker::{Error, LeaseStatus, NewTask};
use raddle_broker_remote::{Options, Remote};
use raddle_model::{TaskSpec, worker::Heartbeat};
use tokio::task::JoinSet;

use crate::support::*;

/// The number of descriptors of the database in this process.
fn count_open(database: &Path) -> usize {
    let links = fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(|entry| fs::read_link(entry.unwrap().path()).ok());
    links.filter(|link| link == database).count()
}

#[tokio::test]
async fn a_thousand_clients_open_no_database_connections() {
    let served = ServedBroker::start(Engine::Sqlite);
    let database = served.directory().join("broker.db");
    let before = count_open(&database);
    let mut clients = JoinSet::new();
    for n in 0..1000 {
        let path = served.path();
        clients.spawn(async move {
            // Like a one-shot worker: connects, runs a task and disconnects.
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
        // Limited by the open files of this process, which has both ends.
        while clients.len() >= 200 {
            clients.join_next().await.unwrap().unwrap();
            assert_eq!(count_open(&database), before);
        }
    }
    while let Some(client) = clients.join_next().await {
        client.unwrap();
    }
    assert_eq!(count_open(&database), before);
}

#[tokio::test]
async fn many_lease_renewers_share_one_database_connection() {
    let served = ServedBroker::start(Engine::Sqlite);
    let database = served.directory().join("broker.db");
    let before = count_open(&database);
    let broker = remote(served.path()).await;
    let mut renewers = Vec::new();
    for _ in 0..100 {
        let owner = broker.register(info(), TTL).await.unwrap();
        renewers.push(broker.lease_renewer(owner, TTL));
    }
    let renewals = std::thread::spawn(move || {
        for _ in 0..3 {
            for renewer in &mut renewers {
                assert!(matches!(
                    renewer.renew(Heartbeat::default()),
                    Ok(LeaseStatus::Alive(_))
                ));
            }
        }
        renewers
    });
    let renewers = tokio::task::spawn_blocking(|| renewals.join().unwrap())
        .await
        .unwrap();
    assert!(
        count_open(&database) <= before + 1,
        "{} for {}",
        count_open(&database),
        renewers.len()
    );
}

#[tokio::test]
async fn a_client_above_the_limit_gets_a_retryable_error() {
    let mut options = Options::default();
    options.connections = 2;
    let served = ServedBroker::start_with(Engine::Memory, options);
    let (first, _second) = (remote(served.path()).await, remote(served.path()).await);
    let error = Remote::connect(&served.path()).await.err().unwrap();
    assert!(
        matches!(error, Error::AgentGone { .. }) && error.is_retryable(),
        "{error}"
    );
    assert!(
        error.to_string().contains("as many connections as it can"),
        "{error}"
    );
    drop(first);
    wait_until("a connection is free", async || {
        Remote::connect(&served.path()).await.ok()
    })
    .await;
}
