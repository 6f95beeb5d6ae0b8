//! Outages of the server, and broken connections.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use raddle_broker::{
    AttemptStarted, CompletionOutcome, Error, LeaseStatus, NewTask, TaskFilter, conformance,
};
use raddle_model::{
    ExitStatus, HumanDuration, RetryPolicy, TaskSpec, TaskState, worker::Heartbeat,
};

use super::{proxy::Proxy, redis_server::Server, support::*};

/// No accepted task is lost or stored twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn submits_survive_kills_of_the_server() {
    let server = Arc::new(Server::start());
    let url = server.url("x");
    let mut submitters = tokio::task::JoinSet::new();
    for _ in 0..3 {
        let broker = open(&url).await.unwrap();
        submitters.spawn(async move {
            let (mut accepted, began) = (Vec::new(), Instant::now());
            while began.elapsed() < Duration::from_millis(1500) {
                let stored = broker
                    .submit((0..20).map(|_| task("task")).collect())
                    .await
                    .unwrap();
                accepted.extend(stored.iter().map(|stored| stored.tid()));
            }
            accepted
        });
    }
    for _ in 0..2 {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let server = Arc::clone(&server);
        tokio::task::spawn_blocking(move || {
            server.kill();
            server.restart();
        })
        .await
        .unwrap();
    }
    let accepted: Vec<_> = submitters.join_all().await.concat();
    let stored_tids = open(&url)
        .await
        .unwrap()
        .tasks(TaskFilter::default())
        .await
        .unwrap();
    let stored_tids: BTreeSet<_> = stored_tids.into_iter().map(|task| task.tid).collect();
    assert_eq!(accepted.len(), stored_tids.len());
    assert_eq!(accepted.into_iter().collect::<BTreeSet<_>>(), stored_tids);
}

/// During the outage its worker could not renew the lease, and no other could reclaim.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_survives_a_server_restart() {
    let server = Server::start();
    let broker = open(&server.url("x")).await.unwrap();
    let lease = Duration::from_millis(400);
    let worker = broker.register(info(), lease).await.unwrap();
    broker.submit(vec![task("one")]).await.unwrap();
    let attempt_id = broker.claim(request(worker, 1)).await.unwrap()[0].attempt_id;
    broker
        .mark_started(vec![AttemptStarted {
            attempt_id,
            pid: None,
        }])
        .await
        .unwrap();
    server.kill();
    tokio::time::sleep(Duration::from_millis(1200)).await;
    server.restart();
    assert!(
        broker.reclaim().await.unwrap().is_empty(),
        "the worker has time to renew"
    );
    let mut renewer = broker.lease_renewer(worker, lease);
    let status = tokio::task::spawn_blocking(move || renewer.renew(Heartbeat::default()))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(status, LeaseStatus::Alive(Vec::new()));
    assert_eq!(
        broker.complete(vec![success(attempt_id)]).await.unwrap(),
        [CompletionOutcome::Finished(TaskState::Completed)]
    );
    assert_eq!(
        broker.complete(vec![success(attempt_id)]).await.unwrap(),
        [CompletionOutcome::Stale]
    );
}

/// While the server is stopped no worker can renew, so no lease expires.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_do_not_expire_while_the_server_is_stopped() {
    let server = Server::start();
    let broker = open(&server.url("x")).await.unwrap();
    let lease = Duration::from_secs(1);
    let (one, other) = (
        broker.register(info(), lease).await.unwrap(),
        broker.register(info(), lease).await.unwrap(),
    );
    broker
        .submit(vec![task("one"), task("other")])
        .await
        .unwrap();
    let attempt_id = broker.claim(request(one, 1)).await.unwrap()[0].attempt_id;
    let others = broker.claim(request(other, 1)).await.unwrap()[0].attempt_id;
    server.signal("STOP");
    tokio::time::sleep(Duration::from_millis(3000)).await;
    server.signal("CONT");
    let mut renewer = broker.lease_renewer(one, lease);
    let status = tokio::task::spawn_blocking(move || renewer.renew(Heartbeat::default()))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        status,
        LeaseStatus::Alive(Vec::new()),
        "the renewal reclaims nothing"
    );
    let done = [
        CompletionOutcome::Finished(TaskState::Completed),
        CompletionOutcome::Finished(TaskState::Completed),
    ];
    assert_eq!(
        broker
            .complete(vec![success(attempt_id), success(others)])
            .await
            .unwrap(),
        done
    );
}

/// A worker that does not renew while others do has lost its lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_expire_while_other_workers_renew_theirs() {
    let server = Server::start();
    let broker = open(&server.url("x")).await.unwrap();
    let lease = Duration::from_secs(1);
    let (one, other) = (
        broker.register(info(), lease).await.unwrap(),
        broker.register(info(), lease).await.unwrap(),
    );
    broker.submit(vec![task("one")]).await.unwrap();
    let attempt_id = broker.claim(request(one, 1)).await.unwrap()[0].attempt_id;
    let mut renewer = broker.lease_renewer(other, lease);
    let taken = tokio::task::spawn_blocking(move || {
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(10) {
            match renewer.renew(Heartbeat::default()).unwrap() {
                LeaseStatus::Alive(taken) if taken.is_empty() => {
                    std::thread::sleep(Duration::from_millis(100))
                }
                LeaseStatus::Alive(taken) => return (taken, began.elapsed()),
                status => panic!("the lease of the other holds: {status:?}"),
            }
        }
        panic!("no worker reclaimed the task")
    });
    let (taken, after) = taken.await.unwrap();
    assert_eq!(taken[0].attempt_id, attempt_id);
    assert!(after >= lease, "{after:?}");
    let mut renewer = broker.lease_renewer(one, lease);
    let late = tokio::task::spawn_blocking(move || renewer.renew(Heartbeat::default()))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(late, LeaseStatus::Expired);
}

/// A worker that knows that the server is down may continue.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_reports_that_the_server_is_down() {
    let server = Server::start();
    let broker = open(&server.url("x")).await.unwrap();
    let lease = Duration::from_secs(1);
    let worker = broker.register(info(), lease).await.unwrap();
    server.kill();
    let mut renewer = broker.lease_renewer(worker, lease);
    let status = tokio::task::spawn_blocking(move || renewer.renew(Heartbeat::default()))
        .await
        .unwrap();
    assert_eq!(status.unwrap(), LeaseStatus::Down);
}

/// A long-lived worker must not keep the log from being trimmed.
#[tokio::test]
async fn trims_the_log_while_a_worker_is_registered() {
    let server = Server::start();
    let broker = open(&server.url("x")).await.unwrap();
    let worker = broker
        .register(info(), Duration::from_secs(60))
        .await
        .unwrap();
    let length = |key: &str| {
        server
            .command(&["XLEN", &format!("raddle:{{x}}:{key}")])
            .trim()
            .trim_start_matches(':')
            .parse::<u64>()
            .unwrap()
    };
    let brief = TaskSpec {
        result_ttl: Some(HumanDuration::millis(1)),
        ..task("one").spec
    };
    for _ in 0..20 {
        broker
            .submit(vec![NewTask::new(brief.clone())])
            .await
            .unwrap();
        let attempt_id = broker.claim(request(worker, 1)).await.unwrap()[0].attempt_id;
        broker.complete(vec![success(attempt_id)]).await.unwrap();
    }
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(broker.purge().await.unwrap(), 20);
    assert_eq!((length("created"), length("log")), (1, 0));
    broker.submit(vec![task("kept")]).await.unwrap();
    broker.purge().await.unwrap();
    assert_eq!(length("created"), 2);
}

/// A waiting worker is woken over a new connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiting_claim_survives_a_server_restart() {
    let server = Server::start();
    let broker = open(&server.url("x")).await.unwrap();
    let worker = broker
        .register(info(), Duration::from_secs(60))
        .await
        .unwrap();
    let waiting = tokio::spawn({
        let broker = Arc::clone(&broker);
        async move { broker.claim(request(worker, 1)).await }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    server.kill();
    server.restart();
    let tid = broker.submit(vec![task("one")]).await.unwrap()[0].tid();
    let claims = tokio::time::timeout(SOON, waiting)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    assert_eq!(claims[0].attempt_id.tid, tid);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reconnects_dropped_connections() {
    let server = Server::start();
    let broker = open(&server.url("x")).await.unwrap();
    let worker = broker
        .register(info(), Duration::from_secs(60))
        .await
        .unwrap();
    for _ in 0..5 {
        let waiting = tokio::spawn({
            let broker = Arc::clone(&broker);
            async move { broker.claim(request(worker, 1)).await }
        });
        tokio::time::sleep(Duration::from_millis(30)).await;
        server.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        let tid = broker.submit(vec![task("one")]).await.unwrap()[0].tid();
        let claims = tokio::time::timeout(SOON, waiting)
            .await
            .unwrap()
            .unwrap()
            .unwrap();
        assert_eq!(claims[0].attempt_id.tid, tid);
    }
}

#[tokio::test]
async fn sends_flushed_scripts_again() {
    let server = Server::start();
    let broker = open(&server.url("x")).await.unwrap();
    let worker = broker
        .register(info(), Duration::from_secs(60))
        .await
        .unwrap();
    for _ in 0..3 {
        server.command(&["SCRIPT", "FLUSH"]);
        let tid = broker.submit(vec![task("one")]).await.unwrap()[0].tid();
        server.command(&["SCRIPT", "FLUSH"]);
        let attempt_id = broker.claim(request(worker, 1)).await.unwrap()[0].attempt_id;
        assert_eq!(attempt_id.tid, tid);
        server.command(&["SCRIPT", "FLUSH"]);
        assert_eq!(
            broker.complete(vec![success(attempt_id)]).await.unwrap(),
            [CompletionOutcome::Finished(TaskState::Completed)]
        );
    }
}

/// The call is executed and its reply is lost: the repeated call is not executed again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_reply_applies_no_write_twice() {
    let server = Server::start();
    let proxy = Proxy::to(server.port).await;
    let broker = open(&format!("redis://127.0.0.1:{}?namespace=x", proxy.port))
        .await
        .unwrap();
    let worker = broker
        .register(info(), Duration::from_secs(60))
        .await
        .unwrap();
    for n in 0..5 {
        proxy.cut_next_reply();
        let stored = broker.submit(vec![task("one"), task("two")]).await.unwrap();
        assert!(proxy.has_cut() && stored.len() == 2);
        proxy.cut_next_reply();
        let attempt_ids: Vec<_> = broker
            .claim(request(worker, 2))
            .await
            .unwrap()
            .iter()
            .map(|claim| (claim.attempt_id, claim.spec.clone()))
            .collect();
        assert!(proxy.has_cut());
        let tids: Vec<_> = stored.iter().map(|stored| stored.tid()).collect();
        assert_eq!(
            attempt_ids
                .iter()
                .map(|(attempt_id, _)| attempt_id.tid)
                .collect::<Vec<_>>(),
            tids,
            "round {n}"
        );
        assert!(
            attempt_ids
                .iter()
                .all(|(attempt_id, _)| attempt_id.attempt == 1)
        );
        proxy.cut_next_reply();
        let outcomes = broker
            .complete(
                attempt_ids
                    .iter()
                    .map(|(attempt_id, _)| success(*attempt_id))
                    .collect(),
            )
            .await
            .unwrap();
        assert!(proxy.has_cut());
        assert_eq!(
            outcomes,
            [CompletionOutcome::Finished(TaskState::Completed); 2]
        );
        proxy.cut_next_reply();
        let queue: raddle_model::QueueName = "jobs".parse().unwrap();
        let put = broker.put(queue.clone(), vec!["x".into()]).await.unwrap();
        proxy.cut_next_reply();
        let taken = broker.take(queue.clone(), 9, Duration::ZERO).await.unwrap();
        assert_eq!(
            taken.iter().map(|message| message.id).collect::<Vec<_>>(),
            put
        );
    }
    let summary = broker.summary().await.unwrap();
    assert_eq!(summary.states, [(TaskState::Completed, 10)].into());
    assert_eq!(summary.stale_writes, 0);
}

/// A call in the buffers of an abandoned connection may arrive after its repetition and later
/// calls.
#[tokio::test]
async fn refuses_a_late_duplicate_of_a_call() {
    let server = Server::start();
    let broker = open(&server.url("x")).await.unwrap();
    broker.submit(vec![task("one")]).await.unwrap();
    let fields = server.command(&["HKEYS", "raddle:{x}:meta"]);
    let slot = fields
        .split_whitespace()
        .find(|field| field.contains(":1:"))
        .unwrap();
    // As if call number 2^54 had been answered since.
    server.command(&[
        "HSET",
        "raddle:{x}:meta",
        slot,
        "\0\0\0\0\0\0\u{50}\u{43}\0\0\0\0\0\0\0\u{40}\u{1}",
    ]);
    let error = broker.submit(vec![task("two")]).await.unwrap_err();
    assert!(
        error.to_string().contains("a finished call was sent again"),
        "{error}"
    );
    assert_eq!(server.command(&["HLEN", "raddle:{x}:specs"]), ":1");
}

/// Replies are kept for callers that may repeat their call, and no longer.
#[tokio::test]
async fn forgets_replies_that_cannot_be_requested_again() {
    let server = Server::start();
    let broker = open(&server.url("x")).await.unwrap();
    let old = |n: u32| format!("00000000000000aa:{n}:600");
    let is_kept = |name: &str| server.command(&["HEXISTS", "raddle:{x}:meta", name]) == ":1";
    // Call number 2, at second 2.
    let reply = "\0\0\0\0\0\0\0\u{40}\0\0\0\0\0\0\0\u{40}\u{1}";
    for n in 0..1_000 {
        server.command(&["HSET", "raddle:{x}:meta", &old(n), reply]);
    }
    server.command(&[
        "HSET",
        "raddle:{x}:meta",
        "00000000000000bb:1:9999999999",
        reply,
    ]);
    broker.submit(vec![task("one")]).await.unwrap();
    // As if a minute had passed since the broker was opened.
    server.command(&["HDEL", "raddle:{x}:meta", "replies_deleted_at"]);
    broker.purge().await.unwrap();
    assert!((0..1_000).all(|n| !is_kept(&old(n))));
    assert!(
        is_kept("00000000000000bb:1:9999999999"),
        "its caller may still repeat the call"
    );
    assert!(is_kept("clock") && is_kept("run"), "other fields stay");
    let answers = server
        .command(&["HKEYS", "raddle:{x}:meta"])
        .matches(":1:")
        .count();
    assert_eq!(
        answers, 2,
        "the replies of the submit and of the patient caller"
    );
    server.command(&["HSET", "raddle:{x}:meta", &old(1), reply]);
    broker.purge().await.unwrap();
    assert!(is_kept(&old(1)), "replies are cleaned up once a minute");
    assert_eq!(server.command(&["KEYS", "*once*"]), "*0");
}

#[tokio::test]
async fn gives_up_a_server_that_stays_down() {
    let server = Server::start();
    let url = format!("{}&give_up_after=400ms&max=100ms", server.url("x"));
    let broker = open(&url).await.unwrap();
    server.kill();
    let began = Instant::now();
    let error = broker.submit(vec![task("one")]).await.unwrap_err();
    // It may have been sent over the old connection, whose end was not noticed yet.
    assert!(
        matches!(error, Error::Unreachable { .. } | Error::Unanswered { .. }),
        "{error}"
    );
    assert!(
        began.elapsed() >= Duration::from_millis(400) && began.elapsed() < Duration::from_secs(10)
    );
    server.restart();
    broker.submit(vec![task("two")]).await.unwrap();
    assert_eq!(broker.tasks(TaskFilter::default()).await.unwrap().len(), 1);
}

/// The call was executed, and given up without a reply: the worker repeats it and gets the recorded
/// outcome.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeated_completion_returns_the_recorded_outcome() {
    let server = Server::start();
    let proxy = Proxy::to(server.port).await;
    let url = format!(
        "redis://127.0.0.1:{}?namespace=x&give_up_after=300ms&max=100ms",
        proxy.port
    );
    let (broker, other) = (
        open(&url).await.unwrap(),
        open(&server.url("x")).await.unwrap(),
    );
    let worker = broker
        .register(info(), Duration::from_secs(60))
        .await
        .unwrap();
    let failure = |attempt_id| conformance::completion(attempt_id, ExitStatus::Code { code: 1 });
    let retry = RetryPolicy {
        attempts: 3,
        base: HumanDuration::millis(600_000),
        ..RetryPolicy::default()
    };
    let task = || {
        NewTask::new(TaskSpec {
            retry: retry.clone(),
            ..task("one").spec
        })
    };
    broker
        .submit((0..5).map(|_| task()).collect())
        .await
        .unwrap();
    let attempt_ids: Vec<_> = broker
        .claim(request(worker, 5))
        .await
        .unwrap()
        .iter()
        .map(|claim| claim.attempt_id)
        .collect();
    // The server must know the scripts, or the reply that is cut is NOSCRIPT.
    broker
        .complete(vec![success(attempt_ids[0]), failure(attempt_ids[1])])
        .await
        .unwrap();
    // A success is sent at once; before a failure the task is read.
    let ends = [
        (success(attempt_ids[2]), 0, TaskState::Completed),
        (failure(attempt_ids[3]), 1, TaskState::Created),
    ];
    for (end, before, state) in &ends {
        broker.summary().await.unwrap();
        proxy.cut_all_after(*before);
        let error = broker.complete(vec![end.clone()]).await.unwrap_err();
        assert!(error.is_retryable(), "{error}");
        assert_eq!(
            other.task(end.attempt_id.tid).await.unwrap().unwrap().state,
            *state,
            "the completion was recorded"
        );
        proxy.restore();
    }
    let all: Vec<_> = ends
        .into_iter()
        .map(|(end, ..)| end)
        .chain([success(attempt_ids[4])])
        .collect();
    let outcomes = broker.complete(all.clone()).await.unwrap();
    assert!(
        matches!(
            outcomes[..],
            [
                CompletionOutcome::Finished(TaskState::Completed),
                CompletionOutcome::Retry(_),
                CompletionOutcome::Finished(TaskState::Completed)
            ]
        ),
        "{outcomes:?}"
    );
    assert_eq!(broker.summary().await.unwrap().stale_writes, 0);
    // Without an unknown outcome a repeated completion is stale.
    assert_eq!(
        broker.complete(all).await.unwrap(),
        [CompletionOutcome::Stale; 3]
    );
    assert_eq!(broker.summary().await.unwrap().stale_writes, 3);
}

/// A worker that was delayed for longer than its lease learns that it has expired, while it waits
/// for tasks too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiting_claim_reports_an_expired_lease() {
    let server = Server::start();
    let broker = open(&server.url("x")).await.unwrap();
    let worker = broker
        .register(info(), Duration::from_millis(300))
        .await
        .unwrap();
    let waiting = tokio::spawn({
        let broker = Arc::clone(&broker);
        async move { broker.claim(request(worker, 1)).await }
    });
    tokio::time::sleep(Duration::from_millis(700)).await;
    open(&server.url("x"))
        .await
        .unwrap()
        .reclaim()
        .await
        .unwrap();
    let error = tokio::time::timeout(SOON, waiting).await.unwrap().unwrap();
    assert!(
        matches!(error, Err(Error::NotFound(tid)) if tid == worker),
        "{error:?}"
    );
}

/// Stored, and the reply was lost: a repetition would store it twice, so the error says that the
/// outcome is unknown.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reports_writes_with_an_unknown_outcome() {
    let server = Server::start();
    let proxy = Proxy::to(server.port).await;
    let broker = open(&format!(
        "redis://127.0.0.1:{}/0?namespace=x&give_up_after=1s",
        proxy.port
    ))
    .await
    .unwrap();
    let queue: raddle_model::QueueName = "jobs".parse().unwrap();
    // The server must know the scripts, or the reply that is cut is NOSCRIPT.
    broker.submit(vec![task("known")]).await.unwrap();
    broker
        .put(queue.clone(), vec!["known".into()])
        .await
        .unwrap();
    proxy.cut_all_after(0);
    let error = broker.submit(vec![task("one")]).await.unwrap_err();
    assert!(
        matches!(error, Error::Unanswered { .. }) && !error.is_retryable(),
        "{error}"
    );
    assert!(
        error
            .to_string()
            .contains("did not confirm that it has stored a task"),
        "{error}"
    );
    proxy.restore();
    assert_eq!(
        broker.tasks(TaskFilter::default()).await.unwrap().len(),
        2,
        "the task is stored"
    );
    proxy.cut_all_after(0);
    let error = broker
        .put(queue.clone(), vec!["x".into()])
        .await
        .unwrap_err();
    assert!(
        error.to_string().contains("has stored a message"),
        "{error}"
    );
    // Idempotent calls fail with a retryable error, and so do calls that never reached the server.
    let error = broker.reclaim().await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
    server.kill();
    proxy.restore();
    let error = broker.submit(vec![task("two")]).await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
}

/// The clock was years back for a moment and left a task there. The search must not visit every ten
/// seconds in between.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resolves_a_short_id_quickly_with_an_old_first_task() {
    let server = Server::start();
    let old = 1_000_000_000_000_000_000u64;
    server.command(&[
        "XADD",
        "raddle:{x}:created",
        &format!("{}-{}", old >> 12, old & 4095),
        "n",
        "1",
    ]);
    let stored = format!(
        "5|default| 1000 - old \n{}",
        serde_json::to_string(&task("old").spec).unwrap()
    );
    server.command(&["HSET", "raddle:{x}:specs", &old.to_string(), &stored]);
    let broker = open(&server.url("x")).await.unwrap();
    let tid = broker.submit(vec![task("one")]).await.unwrap()[0].tid();
    let began = Instant::now();
    assert_eq!(broker.resolve_short_id(tid.short()).await.unwrap(), [tid]);
    let old = raddle_model::Tid::from_u64(old).unwrap();
    assert_eq!(broker.resolve_short_id(old.short()).await.unwrap(), [old]);
    assert!(
        began.elapsed() < Duration::from_secs(2),
        "{:?}",
        began.elapsed()
    );
}

/// A claim with an unreadable record fails and takes no task out of the queue.
#[tokio::test]
async fn an_unreadable_record_leaves_other_tasks_claimable() {
    let server = Server::start();
    let broker = open(&server.url("x")).await.unwrap();
    let worker = broker
        .register(info(), Duration::from_secs(60))
        .await
        .unwrap();
    let stored = broker
        .submit((0..3).map(|_| task("one")).collect())
        .await
        .unwrap();
    let tid = stored[1].tid().to_string();
    server.command(&["HSET", "raddle:{x}:records", &tid, "nonsense"]);
    let error = broker.claim(request(worker, 3)).await.unwrap_err();
    assert!(error.to_string().contains("cannot be read"), "{error}");
    server.command(&["HDEL", "raddle:{x}:records", &tid]);
    let claims = broker.claim(request(worker, 3)).await.unwrap();
    let claimed: Vec<_> = claims.iter().map(|claim| claim.attempt_id.tid).collect();
    assert_eq!(
        claimed,
        stored.iter().map(|stored| stored.tid()).collect::<Vec<_>>()
    );
}
