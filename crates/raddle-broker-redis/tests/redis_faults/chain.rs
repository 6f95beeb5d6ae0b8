//! Chained tasks during outages of the server and network.

use std::{sync::Arc, time::Duration};

use raddle_broker::{AttemptId, Broker, ChainRequest, CompletionOutcome, TaskFilter};
use raddle_model::{TaskSpec, TaskState, Tid};

use super::{proxy::Proxy, redis_server::Server, support::*};

const LEASE: Duration = Duration::from_secs(60);

/// Submits a task and claims it.
async fn submit_and_claim(broker: &Arc<dyn Broker>, worker: Tid) -> AttemptId {
    broker.submit(vec![task("parent")]).await.unwrap();
    broker.claim(request(worker, 1)).await.unwrap()[0].attempt_id
}

/// A chain of two tasks in two partitions.
fn chain(attempt_id: AttemptId) -> ChainRequest {
    let tasks = ["default", "other"].map(|queue| TaskSpec {
        queue: queue.into(),
        ..task(queue).spec
    });
    ChainRequest {
        attempt_id,
        tasks: tasks.into(),
        offset: None,
    }
}

async fn children(broker: &Arc<dyn Broker>, parent: Tid) -> Vec<String> {
    let mut tasks = broker.tasks(TaskFilter::default()).await.unwrap();
    tasks.retain(|task| task.parent == Some(parent));
    tasks
        .iter()
        .rev()
        .map(|task| task.spec.queue.clone())
        .collect()
}

/// Whichever reply is lost, of the chain or of the completion.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_reply_chains_no_task_twice() {
    let server = Server::start();
    let proxy = Proxy::to(server.port).await;
    let broker = open(&format!("redis://127.0.0.1:{}?namespace=x", proxy.port))
        .await
        .unwrap();
    let direct = open(&server.url("x")).await.unwrap();
    let worker = direct.register(info(), LEASE).await.unwrap();
    for answers in 0..3 {
        let attempt_id = submit_and_claim(&direct, worker).await;
        proxy.cut_one_after(answers);
        assert_eq!(
            broker.chain(chain(attempt_id)).await.unwrap(),
            2,
            "after {answers} answers"
        );
        assert_eq!(proxy.has_cut(), answers < 2, "a chain takes two replies");
        assert_eq!(
            direct.task(attempt_id.tid).await.unwrap().unwrap().chained,
            2,
            "after {answers} answers"
        );
        proxy.cut_one_after(answers);
        let outcomes = broker.complete(vec![success(attempt_id)]).await.unwrap();
        assert!(proxy.has_cut(), "a completion takes three replies");
        assert_eq!(
            outcomes,
            [CompletionOutcome::Finished(TaskState::Completed)]
        );
        assert_eq!(
            children(&direct, attempt_id.tid).await,
            ["default", "other"],
            "after {answers} answers"
        );
        let follow_up = direct.claim(request(worker, 9)).await.unwrap();
        assert_eq!(
            direct
                .complete(vec![success(follow_up[0].attempt_id)])
                .await
                .unwrap()
                .len(),
            follow_up.len()
        );
    }
    assert_eq!(direct.summary().await.unwrap().stale_writes, 0);
}

/// The chain is stored with the task.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chained_tasks_survive_a_server_restart() {
    let server = Server::start();
    let broker = open(&server.url("x")).await.unwrap();
    let worker = broker.register(info(), LEASE).await.unwrap();
    let attempt_id = submit_and_claim(&broker, worker).await;
    broker.chain(chain(attempt_id)).await.unwrap();
    server.kill();
    server.restart();
    assert_eq!(
        broker.complete(vec![success(attempt_id)]).await.unwrap(),
        [CompletionOutcome::Finished(TaskState::Completed)]
    );
    assert_eq!(
        children(&broker, attempt_id.tid).await,
        ["default", "other"]
    );
}

/// The chain records are removed, whether their tasks were submitted or not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn removes_chain_records_at_the_end_of_an_attempt() {
    let server = Server::start();
    let broker = open(&server.url("x")).await.unwrap();
    let worker = broker.register(info(), LEASE).await.unwrap();
    for is_followed in [true, false] {
        let attempt_id = submit_and_claim(&broker, worker).await;
        broker.chain(chain(attempt_id)).await.unwrap();
        broker.chain(chain(attempt_id)).await.unwrap();
        assert_eq!(server.command(&["HLEN", "raddle:{x}:chained"]), ":3");
        if is_followed {
            broker.complete(vec![success(attempt_id)]).await.unwrap();
        } else {
            broker.deregister(worker, None).await.unwrap();
        }
        assert_eq!(server.command(&["EXISTS", "raddle:{x}:chained"]), ":0");
        let worker = broker.register(info(), LEASE).await.unwrap();
        broker.claim(request(worker, 9)).await.unwrap();
    }
}
