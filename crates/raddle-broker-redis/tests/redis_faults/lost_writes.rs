//! Lost writes, as after a power cut under `appendfsync everysec`.

use std::time::Duration;

use raddle_broker::CompletionOutcome;
use raddle_model::{TaskEventKind, TaskState};

use super::{redis_server::Server, support::*};

/// The same attempt number is given out twice. Only the second attempt counts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fences_the_first_worker_of_a_forgotten_claim() {
    let server = Server::start();
    let broker = open(&server.url("x")).await.unwrap();
    let first = broker
        .register(info(), Duration::from_secs(60))
        .await
        .unwrap();
    let second = broker
        .register(info(), Duration::from_secs(60))
        .await
        .unwrap();
    let tid = broker.submit(vec![task("task")]).await.unwrap()[0].tid();
    let kept = server.aof_size();
    let lost = broker.claim(request(first, 1)).await.unwrap().remove(0);
    server.kill();
    server.truncate_aof(kept);
    server.restart();
    let again = broker.claim(request(second, 1)).await.unwrap().remove(0);
    assert_eq!(
        (again.attempt_id.tid, again.attempt_id.attempt),
        (tid, lost.attempt_id.attempt),
        "the server has lost the claim"
    );
    assert!(
        again.fencing_token > lost.fencing_token,
        "{again:?} after {lost:?}"
    );
    assert_eq!(
        broker
            .complete(vec![success(lost.attempt_id)])
            .await
            .unwrap(),
        [CompletionOutcome::Stale]
    );
    assert_eq!(
        broker
            .complete(vec![success(again.attempt_id)])
            .await
            .unwrap(),
        [CompletionOutcome::Finished(TaskState::Completed)]
    );
    let events = broker
        .events(Some(0), Some(tid), 100, Duration::ZERO)
        .await
        .unwrap();
    let count = |kind| events.iter().filter(|event| event.event == kind).count();
    assert_eq!(
        (
            count(TaskEventKind::StaleWrite),
            count(TaskEventKind::Completed)
        ),
        (1, 1)
    );
}
