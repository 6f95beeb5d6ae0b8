//! Clusters: a namespace is in one slot, on any node.

use std::{sync::Arc, time::Duration};

use raddle_broker::{CompletionOutcome, TaskFilter};
use raddle_model::TaskState;

use super::{redis_server::cluster::Cluster, support::*};

/// The URL may name any node, while the namespace moves too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn follows_a_namespace_that_moves_to_another_node() {
    let cluster = Cluster::start();
    let (owner, others) = cluster.owner("x");
    let url = |node: usize| {
        format!(
            "redis://127.0.0.1:{}/0?namespace=x&max=100ms",
            cluster.nodes[node].port
        )
    };
    for node in 0..cluster.nodes.len() {
        let broker = open(&url(node)).await.unwrap();
        broker.submit(vec![task("one")]).await.unwrap();
        let health = broker.health().await.unwrap();
        assert!(
            health
                .checks
                .iter()
                .any(|check| check.detail.contains("a node of a cluster")),
            "{health:?}"
        );
    }
    let broker = open(&url(others[0])).await.unwrap();
    let worker = broker
        .register(info(), Duration::from_secs(60))
        .await
        .unwrap();
    let held = broker.claim(request(worker, 3)).await.unwrap();
    assert_eq!(held.len(), 3);
    // One client waits for tasks and one submits while the namespace is split between two nodes.
    let waiting = tokio::spawn({
        let broker = Arc::clone(&broker);
        async move { broker.claim(request(worker, 1)).await }
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    let (begun, is_begun) = std::sync::mpsc::channel();
    let runtime = tokio::runtime::Handle::current();
    let submitter = Arc::clone(&broker);
    let cluster = tokio::task::spawn_blocking(move || {
        cluster.migrate("x", owner, others[1], || {
            let submitting =
                runtime.spawn(async move { submitter.submit(vec![task("two")]).await });
            std::thread::sleep(Duration::from_millis(100));
            assert!(
                !submitting.is_finished(),
                "the namespace is split between nodes"
            );
            begun.send(submitting).unwrap();
        });
        assert_eq!(cluster.owner("x").0, others[1]);
        cluster
    });
    let cluster = cluster.await.unwrap();
    let submitted = is_begun.recv().unwrap();
    let tid = tokio::time::timeout(SOON, submitted)
        .await
        .unwrap()
        .unwrap()
        .unwrap()[0]
        .tid();
    let claims = tokio::time::timeout(SOON, waiting)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    assert_eq!(claims[0].attempt_id.tid, tid);
    let all = held
        .iter()
        .chain(&claims)
        .map(|claim| success(claim.attempt_id))
        .collect();
    assert_eq!(
        broker.complete(all).await.unwrap(),
        [CompletionOutcome::Finished(TaskState::Completed); 4]
    );
    assert_eq!(broker.tasks(TaskFilter::default()).await.unwrap().len(), 4);
    drop(cluster);
}

#[tokio::test]
async fn refuses_a_database_number_in_a_cluster() {
    let server =
        super::redis_server::Server::with(&["--cluster-enabled", "yes", "--appendonly", "yes"]);
    let error = open_error(&format!("redis://127.0.0.1:{}/3", server.port))
        .await
        .to_string();
    assert!(error.contains("cluster mode"), "{error}");
    // A cluster without slots is not ready.
    let error = open_error(&format!("redis://127.0.0.1:{}", server.port)).await;
    assert!(
        error.is_retryable() && error.to_string().contains("CLUSTERDOWN"),
        "{error}"
    );
}

/// A script acknowledges an entry and stores its task, and a script reaches one slot only.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_streams_in_the_slot_of_the_namespace_only() {
    let cluster = Cluster::start();
    let (owner, _) = cluster.owner("orders");
    let url = |namespace: &str| {
        format!(
            "redis://127.0.0.1:{}/0?namespace={namespace}",
            cluster.nodes[owner].port
        )
    };
    let queue: raddle_model::QueueName = "stream:orders".parse().unwrap();
    let open_stream = async |namespace: &str| {
        raddle_broker_connect::open_stream(
            &url(namespace).parse().unwrap(),
            "orders",
            queue.clone(),
        )
        .await
    };
    let refused = open_stream("x").await.err().unwrap().to_string();
    assert!(refused.contains("use ?namespace=orders"), "{refused}");
    let mut stream = open_stream("orders").await.unwrap();
    cluster.nodes[owner].command(&["XADD", "orders", "*", "message", "one"]);
    assert_eq!(
        tokio::time::timeout(SOON, stream.transfer())
            .await
            .unwrap()
            .unwrap(),
        1
    );
    let taken = open(&url("orders"))
        .await
        .unwrap()
        .take(queue.clone(), 9, Duration::ZERO)
        .await
        .unwrap();
    assert_eq!(
        taken
            .iter()
            .map(|message| message.body.as_str())
            .collect::<Vec<_>>(),
        ["one"]
    );
}
