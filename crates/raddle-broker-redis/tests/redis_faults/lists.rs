//! Lists that only help to find tasks: what is wrong with one neither keeps anything busy nor lets a task wait.

use std::time::Duration;

use raddle_broker::Error;

use super::{redis_server::Server, support::*};

#[tokio::test]
async fn what_is_no_task_is_removed_from_the_list_of_those_that_expire() {
    let server = Server::start();
    let broker = open(&server.url("x")).await.unwrap();
    server.ask(&["ZADD", "raddle:{x}:expiring", "1", "nonsense"]);
    let due_items = tokio::time::timeout(SOON, broker.due_items(Duration::ZERO))
        .await
        .expect("it comes to an end")
        .unwrap();
    assert!(
        due_items.due.is_empty() && due_items.expired == 0,
        "{due_items:?}"
    );
    assert_eq!(server.ask(&["ZCARD", "raddle:{x}:expiring"]), ":0");
}

/// A worker without a lease gets nothing, and has taken the element that was to wake another.
#[tokio::test]
async fn a_worker_whose_lease_lapsed_passes_its_wake_up_on() {
    let server = Server::start();
    let broker = open(&server.url("x")).await.unwrap();
    let worker = broker.register(info(), SOON).await.unwrap();
    broker.submit(vec![task("one")]).await.unwrap();
    assert_eq!(broker.claim(request(worker, 1)).await.unwrap().len(), 1);
    broker.submit(vec![task("two")]).await.unwrap();
    let ready = "raddle:{x}:ready:5|default|";
    server.ask(&["DEL", ready]);
    server.ask(&["ZADD", "raddle:{x}:lease", "1", &worker.to_string()]);
    assert!(matches!(
        broker.claim(request(worker, 1)).await,
        Err(Error::NotFound(_))
    ));
    assert_eq!(server.ask(&["LLEN", ready]), ":1");
}
