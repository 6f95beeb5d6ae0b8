//! Index lists: a wrong entry neither loops nor delays a task.

use std::time::Duration;

use raddle_broker::Error;

use super::{redis_server::Server, support::*};

#[tokio::test]
async fn removes_invalid_entries_of_the_expiry_list() {
    let server = Server::start();
    let broker = open(&server.url("x")).await.unwrap();
    server.command(&["ZADD", "raddle:{x}:expiries", "1", "nonsense"]);
    let due_items = tokio::time::timeout(SOON, broker.due_items(Duration::ZERO))
        .await
        .expect("the call ends")
        .unwrap();
    assert!(
        due_items.due.is_empty() && due_items.expired == 0,
        "{due_items:?}"
    );
    assert_eq!(server.command(&["ZCARD", "raddle:{x}:expiries"]), ":0");
}

/// A worker without a lease gets no task, and has consumed the wake-up of another.
#[tokio::test]
async fn a_worker_without_a_lease_passes_its_wake_up_on() {
    let server = Server::start();
    let broker = open(&server.url("x")).await.unwrap();
    let worker = broker.register(info(), SOON).await.unwrap();
    broker.submit(vec![task("one")]).await.unwrap();
    assert_eq!(broker.claim(request(worker, 1)).await.unwrap().len(), 1);
    broker.submit(vec![task("two")]).await.unwrap();
    let ready = "raddle:{x}:wake:partition:5|default|";
    server.command(&["DEL", ready]);
    server.command(&["ZADD", "raddle:{x}:leases", "1", &worker.to_string()]);
    assert!(matches!(
        broker.claim(request(worker, 1)).await,
        Err(Error::NotFound(_))
    ));
    assert_eq!(server.command(&["LLEN", ready]), ":1");
}
