//! URLs of servers.

use std::time::Duration;

use raddle_broker::TaskFilter;

use super::{redis_server::Server, support::*};

#[tokio::test]
async fn namespaces_and_databases_are_kept_apart() {
    let server = Server::start();
    let mut brokers = Vec::new();
    for path in ["0?namespace=a", "0?namespace=b", "1?namespace=a"] {
        brokers.push(
            open(&format!("redis://127.0.0.1:{}/{path}", server.port))
                .await
                .unwrap(),
        );
    }
    let worker = brokers[0]
        .register(info(), Duration::from_secs(60))
        .await
        .unwrap();
    brokers[1].submit(vec![task("b")]).await.unwrap();
    brokers[2].submit(vec![task("c")]).await.unwrap();
    let mut at_once = request(worker, 5);
    at_once.wait = Duration::ZERO;
    assert!(brokers[0].claim(at_once).await.unwrap().is_empty());
    for (broker, tasks) in brokers.iter().zip([0, 1, 1]) {
        assert_eq!(
            broker.tasks(TaskFilter::default()).await.unwrap().len(),
            tasks
        );
    }
    assert!(brokers[1].workers().await.unwrap().is_empty());
}

#[tokio::test]
async fn connects_to_a_unix_socket() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("redis.sock");
    let path = socket.to_str().unwrap();
    let _server = Server::with(&["--unixsocket", path, "--appendonly", "yes"]);
    let broker = open(&format!("redis+unix:{path}?namespace=x"))
        .await
        .unwrap();
    broker.submit(vec![task("one")]).await.unwrap();
    assert!(
        broker
            .health()
            .await
            .unwrap()
            .location
            .starts_with("redis+unix:")
    );
}
