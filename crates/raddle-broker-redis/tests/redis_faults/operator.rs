//! Questions of operators whose answers depend on how this engine stores tasks.

use std::time::Duration;

use raddle_broker::{
    NewTask, Release, Submitted, TaskFilter, conformance,
    operations::{NewOperation, OperationAction, OperationSelection, OperationState},
};
use raddle_model::{
    ControlCommand, ControlMessage, ExitStatus, RetryPolicy, TaskSpec, TaskState, Tid,
};

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

/// Besides those that expire, and those that name partitions.
#[tokio::test]
async fn purged_tasks_leave_no_key() {
    let server = Server::start();
    let broker = open(&server.url("x")).await.unwrap();
    let worker = broker.register(info(), SOON).await.unwrap();
    let batch = broker.submit((0..6).map(|_| task("one")).collect()).await;
    let tids: Vec<Tid> = batch.unwrap().into_iter().map(Submitted::tid).collect();
    for (tid, command) in [
        (tids[4], ControlCommand::Stop),
        (tids[5], ControlCommand::Kill),
    ] {
        broker
            .control(tid, ControlMessage::new(command))
            .await
            .unwrap();
    }
    let claims = broker.claim(request(worker, 4)).await.unwrap();
    let ends = [
        ExitStatus::Code { code: 0 },
        ExitStatus::Code { code: 3 },
        ExitStatus::Timeout,
        ExitStatus::Killed,
    ];
    let ends = claims.iter().zip(ends);
    let ends = ends.map(|(claim, exit)| conformance::completion(claim.attempt_id, exit));
    broker.complete(ends.collect()).await.unwrap();
    let summary = broker.summary().await.unwrap();
    assert_eq!(summary.states.values().sum::<u64>(), 6);
    assert_eq!(summary.states[&TaskState::Killed], 2);
    broker.deregister(worker, None).await.unwrap();
    server.command(&[
        "EVAL",
        "for _, tid in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do redis.call('ZADD', KEYS[1], 0, tid) end",
        "1",
        "raddle:{x}:retention",
    ]);
    while broker.purge().await.unwrap() > 0 {}
    let keys = server.command(&["KEYS", "raddle:{x}:*"]);
    // Empty streams keep their last id.
    let kept = [
        "meta",
        "partitions",
        "log",
        "created",
        "wake:partition:5|default|",
    ];
    let left: Vec<&str> = keys
        .lines()
        .filter_map(|line| line.trim_end().strip_prefix("raddle:{x}:"))
        .filter(|key| !kept.contains(key))
        .filter(|key| !key.starts_with("outcomes:") && !key.starts_with("worker:"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

/// Callers that stop in the middle of a portion, at any moment, lose and repeat nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operation_outlives_its_callers() {
    const TASKS: u32 = 1500;
    let server = Server::start();
    let url = server.url("x");
    let broker = open(&url).await.unwrap();
    let worker = broker.register(info(), SOON).await.unwrap();
    let spec = TaskSpec {
        retry: RetryPolicy {
            attempts: 1,
            ..RetryPolicy::default()
        },
        ..task("one").spec
    };
    let tasks = (0..TASKS).map(|_| NewTask::new(spec.clone()));
    broker.submit(tasks.collect()).await.unwrap();
    let claims = broker.claim(request(worker, TASKS)).await.unwrap();
    let failed = ExitStatus::Code { code: 3 };
    let ends = claims
        .iter()
        .map(|claim| conformance::completion(claim.attempt_id, failed.clone()));
    broker.complete(ends.collect()).await.unwrap();
    assert_eq!(broker.summary().await.unwrap().dead, u64::from(TASKS));
    let operation = NewOperation {
        action: OperationAction::Retry,
        selection: OperationSelection::Query("dead:yes".parse().unwrap()),
        as_of: Tid::from_u64(broker.last_event().await.unwrap()).unwrap(),
        expected: None,
        reason: String::new(),
        by: String::new(),
    };
    let id = broker.start_operation(operation).await.unwrap();
    for n in 0..12 {
        let caller = open(&url).await.unwrap();
        let advance = async move { caller.advance_operation(id, 100).await };
        let delay = Duration::from_millis(5 * n);
        let _ = tokio::time::timeout(delay, advance).await;
    }
    let end = broker.advance_operation(id, u32::MAX).await.unwrap();
    assert_eq!(end.state, OperationState::Completed);
    assert_eq!((end.done, end.changed, end.refused), (TASKS.into(), 0, 0));
    let summary = broker.summary().await.unwrap();
    assert_eq!(summary.dead, 0);
    let waiting = u64::from(TASKS);
    assert_eq!(summary.states[&TaskState::Created], waiting);
    assert_eq!(summary.states[&TaskState::Failed], waiting);
}
