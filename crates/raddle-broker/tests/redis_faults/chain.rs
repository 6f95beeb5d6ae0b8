//! What is chained, while the server and the way to it are out of order.

use std::{sync::Arc, time::Duration};

use raddle_broker::{Broker, Chain, Fence, TaskFilter, Verdict};
use raddle_core::{Spec, State, Tid};

use super::{proxy::Proxy, redis_server::Server, support::*};

const LEASE: Duration = Duration::from_secs(60);

/// A task whose attempt a worker has.
async fn claimed(broker: &Arc<dyn Broker>, worker: Tid) -> Fence {
    broker.submit(vec![task("parent")]).await.unwrap();
    broker.claim(request(worker, 1)).await.unwrap()[0].fence
}

/// Two tasks of two partitions.
fn chain(fence: Fence) -> Chain {
    let tasks = ["default", "other"].map(|queue| Spec { queue: queue.into(), ..task(queue).spec });
    Chain { fence, tasks: tasks.into(), told: None }
}

async fn children(broker: &Arc<dyn Broker>, parent: Tid) -> Vec<String> {
    let mut tasks = broker.tasks(TaskFilter::default()).await.unwrap();
    tasks.retain(|task| task.parent == Some(parent));
    tasks.iter().rev().map(|task| task.spec.queue.clone()).collect()
}

/// Whichever answer it is, on the way of the chain or of the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_answer_chains_nothing_twice() {
    let server = Server::start();
    let proxy = Proxy::to(server.port).await;
    let broker = open(&format!("redis://127.0.0.1:{}?namespace=x", proxy.port)).await.unwrap();
    let direct = open(&server.url("x")).await.unwrap();
    let worker = direct.register(info(), LEASE).await.unwrap();
    for answers in 0..3 {
        let fence = claimed(&direct, worker).await;
        proxy.cut_one_after(answers);
        assert_eq!(broker.chain(chain(fence)).await.unwrap(), 2, "after {answers} answers");
        assert_eq!(proxy.has_cut(), answers < 2, "it takes two answers");
        assert_eq!(direct.task(fence.tid).await.unwrap().unwrap().chained, 2, "after {answers} answers");
        proxy.cut_one_after(answers);
        let verdicts = broker.finish(vec![success(fence)]).await.unwrap();
        assert!(proxy.has_cut(), "it takes three answers");
        assert_eq!(verdicts, [Verdict::Done(State::Completed)]);
        assert_eq!(children(&direct, fence.tid).await, ["default", "other"], "after {answers} answers");
        let follow_up = direct.claim(request(worker, 9)).await.unwrap();
        assert_eq!(direct.finish(vec![success(follow_up[0].fence)]).await.unwrap().len(), follow_up.len());
    }
    assert_eq!(direct.summary().await.unwrap().stale_writes, 0);
}

/// What was chained is where the task is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_chained_outlives_the_server() {
    let server = Server::start();
    let broker = open(&server.url("x")).await.unwrap();
    let worker = broker.register(info(), LEASE).await.unwrap();
    let fence = claimed(&broker, worker).await;
    broker.chain(chain(fence)).await.unwrap();
    server.kill();
    server.restart();
    assert_eq!(broker.finish(vec![success(fence)]).await.unwrap(), [Verdict::Done(State::Completed)]);
    assert_eq!(children(&broker, fence.tid).await, ["default", "other"]);
}

/// Nothing is left of what was chained, followed or not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_left_of_what_was_chained() {
    let server = Server::start();
    let broker = open(&server.url("x")).await.unwrap();
    let worker = broker.register(info(), LEASE).await.unwrap();
    for is_followed in [true, false] {
        let fence = claimed(&broker, worker).await;
        broker.chain(chain(fence)).await.unwrap();
        broker.chain(chain(fence)).await.unwrap();
        assert_eq!(server.ask(&["HLEN", "raddle:{x}:chained"]), ":3");
        if is_followed {
            broker.finish(vec![success(fence)]).await.unwrap();
        } else {
            broker.deregister(worker, None).await.unwrap();
        }
        assert_eq!(server.ask(&["EXISTS", "raddle:{x}:chained"]), ":0");
        let worker = broker.register(info(), LEASE).await.unwrap();
        broker.claim(request(worker, 9)).await.unwrap();
    }
}
