//! A server that goes away and comes back, and connections that break.

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

/// Nothing that was accepted is lost, and nothing is there twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn submissions_survive_a_server_that_is_killed() {
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
    let there = open(&url)
        .await
        .unwrap()
        .tasks(TaskFilter::default())
        .await
        .unwrap();
    let there: BTreeSet<_> = there.into_iter().map(|task| task.tid).collect();
    assert_eq!(accepted.len(), there.len());
    assert_eq!(accepted.into_iter().collect::<BTreeSet<_>>(), there);
}

/// Its worker could not renew the lease, and nobody could have taken over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_outlives_a_server_that_is_started_anew() {
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
        "the worker has time to come back"
    );
    let mut renewer = broker.lease_renewer(worker, lease);
    let pulse = tokio::task::spawn_blocking(move || renewer.renew(Heartbeat::default()))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(pulse, LeaseStatus::Alive(Vec::new()));
    assert_eq!(
        broker.complete(vec![success(attempt_id)]).await.unwrap(),
        [CompletionOutcome::Finished(TaskState::Completed)]
    );
    assert_eq!(
        broker.complete(vec![success(attempt_id)]).await.unwrap(),
        [CompletionOutcome::Stale]
    );
}

/// Nobody could renew a lease, so nobody has let one run out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_do_not_run_while_the_server_stands_still() {
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
    let pulse = tokio::task::spawn_blocking(move || renewer.renew(Heartbeat::default()))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        pulse,
        LeaseStatus::Alive(Vec::new()),
        "and it takes nothing from the other"
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

/// Whoever is cut off while others are heard has let its lease run out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_run_while_others_are_heard() {
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
                pulse => panic!("the lease of the other holds: {pulse:?}"),
            }
        }
        panic!("nobody took over")
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

/// A worker that knows the server to be down may go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_beat_tells_that_the_server_is_down() {
    let server = Server::start();
    let broker = open(&server.url("x")).await.unwrap();
    let lease = Duration::from_secs(1);
    let worker = broker.register(info(), lease).await.unwrap();
    server.kill();
    let mut renewer = broker.lease_renewer(worker, lease);
    let pulse = tokio::task::spawn_blocking(move || renewer.renew(Heartbeat::default()))
        .await
        .unwrap();
    assert_eq!(pulse.unwrap(), LeaseStatus::Down);
}

/// A worker that lives for a year must not keep the log of a year.
#[tokio::test]
async fn the_log_is_cut_while_a_worker_lives() {
    let server = Server::start();
    let broker = open(&server.url("x")).await.unwrap();
    let worker = broker
        .register(info(), Duration::from_secs(60))
        .await
        .unwrap();
    let length = |of: &str| {
        server
            .ask(&["XLEN", &format!("raddle:{{x}}:{of}")])
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
    assert_eq!((length("born"), length("log")), (1, 0));
    broker.submit(vec![task("kept")]).await.unwrap();
    broker.purge().await.unwrap();
    assert_eq!(length("born"), 2);
}

/// A worker that waits is woken over a new connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_waits_survives_a_server_that_is_started_anew() {
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
async fn dropped_connections_are_made_again() {
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
        server.ask(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        server.ask(&["CLIENT", "KILL", "TYPE", "pubsub"]);
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
async fn scripts_that_were_flushed_are_sent_again() {
    let server = Server::start();
    let broker = open(&server.url("x")).await.unwrap();
    let worker = broker
        .register(info(), Duration::from_secs(60))
        .await
        .unwrap();
    for _ in 0..3 {
        server.ask(&["SCRIPT", "FLUSH"]);
        let tid = broker.submit(vec![task("one")]).await.unwrap()[0].tid();
        server.ask(&["SCRIPT", "FLUSH"]);
        let attempt_id = broker.claim(request(worker, 1)).await.unwrap()[0].attempt_id;
        assert_eq!(attempt_id.tid, tid);
        server.ask(&["SCRIPT", "FLUSH"]);
        assert_eq!(
            broker.complete(vec![success(attempt_id)]).await.unwrap(),
            [CompletionOutcome::Finished(TaskState::Completed)]
        );
    }
}

/// Carried out, and the answer lost: sent again, it is not carried out again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_answer_changes_nothing_twice() {
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
        proxy.cut_next_answer();
        let stored = broker.submit(vec![task("one"), task("two")]).await.unwrap();
        assert!(proxy.has_cut() && stored.len() == 2);
        proxy.cut_next_answer();
        let fences: Vec<_> = broker
            .claim(request(worker, 2))
            .await
            .unwrap()
            .iter()
            .map(|claim| (claim.attempt_id, claim.spec.clone()))
            .collect();
        assert!(proxy.has_cut());
        let tids: Vec<_> = stored.iter().map(|stored| stored.tid()).collect();
        assert_eq!(
            fences
                .iter()
                .map(|(attempt_id, _)| attempt_id.tid)
                .collect::<Vec<_>>(),
            tids,
            "round {n}"
        );
        assert!(fences.iter().all(|(attempt_id, _)| attempt_id.attempt == 1));
        proxy.cut_next_answer();
        let verdicts = broker
            .complete(
                fences
                    .iter()
                    .map(|(attempt_id, _)| success(*attempt_id))
                    .collect(),
            )
            .await
            .unwrap();
        assert!(proxy.has_cut());
        assert_eq!(
            verdicts,
            [CompletionOutcome::Finished(TaskState::Completed); 2]
        );
        proxy.cut_next_answer();
        let queue: raddle_model::QueueName = "jobs".parse().unwrap();
        let put = broker.put(queue.clone(), vec!["x".into()]).await.unwrap();
        proxy.cut_next_answer();
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

/// What a connection that was given up had still on its way may arrive after all, when its call was made again and others after it.
#[tokio::test]
async fn a_call_that_is_over_is_not_made_again() {
    let server = Server::start();
    let broker = open(&server.url("x")).await.unwrap();
    broker.submit(vec![task("one")]).await.unwrap();
    let fields = server.ask(&["HKEYS", "raddle:{x}:meta"]);
    let slot = fields
        .split_whitespace()
        .find(|field| field.contains(":1:"))
        .unwrap();
    // As if call number 2^54 had been answered since.
    server.ask(&[
        "HSET",
        "raddle:{x}:meta",
        slot,
        "\0\0\0\0\0\0\u{50}\u{43}\0\0\0\0\0\0\0\u{40}\u{1}",
    ]);
    let error = broker.submit(vec![task("two")]).await.unwrap_err();
    assert!(error.to_string().contains("a finished call was sent again"), "{error}");
    assert_eq!(server.ask(&["HLEN", "raddle:{x}:spec"]), ":1");
}

/// What calls were answered is kept for those that may ask again, and for no longer.
#[tokio::test]
async fn answers_are_forgotten_when_nobody_can_ask_for_them_again() {
    let server = Server::start();
    let broker = open(&server.url("x")).await.unwrap();
    let old = |n: u32| format!("00000000000000aa:{n}:600");
    let is_kept = |name: &str| server.ask(&["HEXISTS", "raddle:{x}:meta", name]) == ":1";
    // Call number 2, in the second 2.
    let said = "\0\0\0\0\0\0\0\u{40}\0\0\0\0\0\0\0\u{40}\u{1}";
    for n in 0..1_000 {
        server.ask(&["HSET", "raddle:{x}:meta", &old(n), said]);
    }
    server.ask(&[
        "HSET",
        "raddle:{x}:meta",
        "00000000000000bb:1:9999999999",
        said,
    ]);
    broker.submit(vec![task("one")]).await.unwrap();
    // As if the minute since the broker was opened were over.
    server.ask(&["HDEL", "raddle:{x}:meta", "forgot"]);
    broker.purge().await.unwrap();
    assert!((0..1_000).all(|n| !is_kept(&old(n))));
    assert!(
        is_kept("00000000000000bb:1:9999999999"),
        "its caller is patient"
    );
    assert!(
        is_kept("clock") && is_kept("run"),
        "what is no answer stays"
    );
    let answers = server
        .ask(&["HKEYS", "raddle:{x}:meta"])
        .matches(":1:")
        .count();
    assert_eq!(answers, 2, "the submission's, and the patient one's");
    server.ask(&["HSET", "raddle:{x}:meta", &old(1), said]);
    broker.purge().await.unwrap();
    assert!(
        is_kept(&old(1)),
        "looked for each minute, and not more often"
    );
    assert_eq!(server.ask(&["KEYS", "*once*"]), "*0");
}

#[tokio::test]
async fn a_server_that_stays_away_is_given_up() {
    let server = Server::start();
    let url = format!("{}&give_up_after=400ms&max=100ms", server.url("x"));
    let broker = open(&url).await.unwrap();
    server.kill();
    let began = Instant::now();
    let error = broker.submit(vec![task("one")]).await.unwrap_err();
    // It may have been sent over the old connection, of which nobody had heard yet that it was over.
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

/// Carried out, and no answer came for so long that the call was given up: the worker, which insists, is told what was recorded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_end_that_was_recorded_is_not_refused_when_it_is_sent_again() {
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
    let fences: Vec<_> = broker
        .claim(request(worker, 5))
        .await
        .unwrap()
        .iter()
        .map(|claim| claim.attempt_id)
        .collect();
    // The server has to know the scripts, or the first answer that is cut is that it does not.
    broker
        .complete(vec![success(fences[0]), failure(fences[1])])
        .await
        .unwrap();
    // A success is sent at once; before a failure the task is read.
    let ends = [
        (success(fences[2]), 0, TaskState::Completed),
        (failure(fences[3]), 1, TaskState::Created),
    ];
    for (end, before, state) in &ends {
        broker.summary().await.unwrap();
        proxy.cut_all_after(*before);
        let error = broker.complete(vec![end.clone()]).await.unwrap_err();
        assert!(error.is_retryable(), "{error}");
        assert_eq!(
            other.task(end.attempt_id.tid).await.unwrap().unwrap().state,
            *state,
            "it was recorded"
        );
        proxy.mend();
    }
    let all: Vec<_> = ends
        .into_iter()
        .map(|(end, ..)| end)
        .chain([success(fences[4])])
        .collect();
    let verdicts = broker.complete(all.clone()).await.unwrap();
    assert!(
        matches!(
            verdicts[..],
            [
                CompletionOutcome::Finished(TaskState::Completed),
                CompletionOutcome::Retry(_),
                CompletionOutcome::Finished(TaskState::Completed)
            ]
        ),
        "{verdicts:?}"
    );
    assert_eq!(broker.summary().await.unwrap().stale_writes, 0);
    // Who is not in doubt any more is refused as ever.
    assert_eq!(
        broker.complete(all).await.unwrap(),
        [CompletionOutcome::Stale; 3]
    );
    assert_eq!(broker.summary().await.unwrap().stale_writes, 3);
}

/// A worker that was held up for longer than its lease learns that it is gone, also when it was waiting for tasks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_was_taken_for_dead_is_told_while_it_waits() {
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
    let told = tokio::time::timeout(SOON, waiting).await.unwrap().unwrap();
    assert!(
        matches!(told, Err(Error::NotFound(tid)) if tid == worker),
        "{told:?}"
    );
}

/// Stored, and no answer came through: whoever repeats it would have it twice, so it is told that nobody knows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_may_have_been_stored_is_not_said_to_have_failed() {
    let server = Server::start();
    let proxy = Proxy::to(server.port).await;
    let broker = open(&format!(
        "redis://127.0.0.1:{}/0?namespace=x&give_up_after=1s",
        proxy.port
    ))
    .await
    .unwrap();
    let queue: raddle_model::QueueName = "jobs".parse().unwrap();
    // The server has to know the scripts, or the first answer that is cut is that it does not.
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
            .contains("did not say whether it has stored a task"),
        "{error}"
    );
    proxy.mend();
    assert_eq!(
        broker.tasks(TaskFilter::default()).await.unwrap().len(),
        2,
        "it is there"
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
    // What can be asked for again without harm fails as before, and so does what never reached the server.
    let error = broker.reclaim().await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
    server.kill();
    proxy.mend();
    let error = broker.submit(vec![task("two")]).await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
}

/// A clock that stood years back for a moment has left a task there. Nobody looks for others at every ten seconds in between.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_short_id_is_found_at_once_however_old_the_first_task_is() {
    let server = Server::start();
    let old = 1_000_000_000_000_000_000u64;
    server.ask(&[
        "XADD",
        "raddle:{x}:born",
        &format!("{}-{}", old >> 12, old & 4095),
        "n",
        "1",
    ]);
    let stored = format!(
        "5|default| 1000 - \n{}",
        serde_json::to_string(&task("old").spec).unwrap()
    );
    server.ask(&["HSET", "raddle:{x}:spec", &old.to_string(), &stored]);
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

/// A claim that meets an unreadable record fails and takes no task out of the queue.
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
    server.ask(&["HSET", "raddle:{x}:task", &tid, "nonsense"]);
    let error = broker.claim(request(worker, 3)).await.unwrap_err();
    assert!(error.to_string().contains("cannot be read"), "{error}");
    server.ask(&["HDEL", "raddle:{x}:task", &tid]);
    let claims = broker.claim(request(worker, 3)).await.unwrap();
    let claimed: Vec<_> = claims.iter().map(|claim| claim.attempt_id.tid).collect();
    assert_eq!(
        claimed,
        stored.iter().map(|stored| stored.tid()).collect::<Vec<_>>()
    );
}
