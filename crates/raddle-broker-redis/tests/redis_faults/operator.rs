//! Questions of operators whose answers depend on how this engine stores tasks.

use std::time::Duration;

use raddle_broker::{Release, TaskFilter};

use super::{redis_server::Server, support::*};

/// The record lists the newest events only; the others are found in the log.
#[tokio::test]
async fn all_events_of_a_task_with_many_attempts_are_found() {
    const ATTEMPTS: usize = 80;
    let server = Server::start();
    let broker = open(&server.url("x")).await.unwrap();
    let worker = broker.register(info(), SOON).await.unwrap();
    let tid = broker.submit(vec![task("one")]).await.unwrap()[0].tid();
    for _ in 0..ATTEMPTS {
        let claims = broker.claim(request(worker, 1)).await.unwrap();
        let release = Release {
            attempt_id: claims[0].attempt_id,
            reason: "test".into(),
        };
        broker.release(vec![release]).await.unwrap();
        broker.submit(vec![task("other")]).await.unwrap();
    }
    let record = server.command(&["HGET", "raddle:{x}:records", &tid.to_string()]);
    assert!(record.contains(" +"), "the list is cut: {record}");
    let mut after = 0;
    let mut seen = Vec::new();
    loop {
        let events = broker
            .events(Some(after), Some(tid), 7, Duration::ZERO)
            .await
            .unwrap();
        let Some(last) = events.last() else { break };
        after = last.id.as_u64();
        seen.extend(events);
    }
    // Created, and two events of each attempt.
    assert_eq!(seen.len(), 1 + 2 * ATTEMPTS);
    assert!(seen.is_sorted_by_key(|event| event.id));
    assert!(seen.iter().all(|event| event.tid == tid));
    let attempts: Vec<u32> = seen
        .iter()
        .skip(1)
        .step_by(2)
        .map(|event| event.attempt)
        .collect();
    assert_eq!(attempts, (1..=ATTEMPTS as u32).collect::<Vec<_>>());
}

/// One entry of the index stands for all tasks of a submission.
#[tokio::test]
async fn a_search_stops_within_a_large_submission() {
    const TASKS: usize = 2500;
    let server = Server::start();
    let broker = open(&server.url("x")).await.unwrap();
    let tasks = (0..TASKS).map(|i| task(if i == 3 { "rare" } else { "frame" }));
    let submitted = broker.submit(tasks.collect()).await.unwrap();
    let mut filter = TaskFilter {
        name: Some("rar*".into()),
        max_examined: Some(700),
        ..TaskFilter::default()
    };
    let (mut looked_at, mut found) = (Vec::new(), Vec::new());
    loop {
        let page = broker.find_tasks(filter.clone()).await.unwrap();
        looked_at.push(page.looked_at);
        found.extend(page.tasks.into_iter().map(|task| task.tid));
        filter.before = page.next;
        if page.next.is_none() {
            break;
        }
    }
    assert_eq!(looked_at, [700, 700, 700, 400]);
    assert_eq!(found, [submitted[3].tid()]);
}

#[tokio::test]
async fn a_queue_without_tasks_has_no_counters() {
    let server = Server::start();
    let broker = open(&server.url("x")).await.unwrap();
    let worker = broker.register(info(), SOON).await.unwrap();
    let tid = broker.submit(vec![task("one")]).await.unwrap()[0].tid();
    let claims = broker.claim(request(worker, 1)).await.unwrap();
    broker
        .complete(vec![success(claims[0].attempt_id)])
        .await
        .unwrap();
    assert_ne!(server.command(&["HLEN", "raddle:{x}:counters"]), ":0");
    assert_eq!(broker.delete(vec![tid]).await.unwrap(), 1);
    assert_eq!(server.command(&["HLEN", "raddle:{x}:counters"]), ":0");
}
