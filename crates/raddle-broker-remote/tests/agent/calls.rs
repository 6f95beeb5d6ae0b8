//! Dropped calls, lost replies, replaced servers.

use std::{
    io::{Read, Write},
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use raddle_broker::{
    AttemptId, Broker, CompletionOutcome, Error, LeaseStatus, NewTask, Release, SummaryDetail,
    TaskFilter, conformance,
};
use raddle_broker_remote::Options;
use raddle_model::{ExitStatus, TaskSpec, TaskState, Tid, worker::Heartbeat};

use crate::support::*;

#[tokio::test]
async fn a_dropped_claim_takes_no_task() {
    for engine in Engine::ALL {
        let served = ServedBroker::start(engine);
        let (one, other) = (remote(served.path()).await, remote(served.path()).await);
        let (impatient, patient) = (
            one.register(info(), TTL).await.unwrap(),
            other.register(info(), TTL).await.unwrap(),
        );
        for _ in 0..20 {
            // Long enough to wait on the server, where only the cancel message can end it.
            let claim = one.claim(request(impatient, TTL));
            assert!(
                tokio::time::timeout(Duration::from_millis(3), claim)
                    .await
                    .is_err()
            );
            let tid = submit(&*other).await;
            let claims = other.claim(request(patient, SOON)).await.unwrap();
            assert_eq!(
                claims
                    .iter()
                    .map(|claim| claim.attempt_id.tid)
                    .collect::<Vec<_>>(),
                [tid],
                "{engine:?}"
            );
        }
    }
}

#[tokio::test]
async fn returns_errors_of_the_engine() {
    let served = ServedBroker::start(Engine::Sqlite);
    let broker = remote(served.path()).await;
    let unknown_tid = Tid::from_u64(1_700_000_000_000_000_000).unwrap();
    let error = broker.resubmit(unknown_tid, false).await.unwrap_err();
    assert!(matches!(error, Error::NotFound(tid) if tid == unknown_tid));
    assert!(error.is_callers() && !error.is_retryable());
    let tid = submit(&*broker).await;
    assert!(matches!(
        broker.resubmit(tid, false).await,
        Err(Error::Unfinished(_, TaskState::Created))
    ));
    let health = broker.health().await.unwrap();
    assert!(health.engine.starts_with("sqlite"));
    assert!(
        health.checks[0]
            .detail
            .contains(&std::process::id().to_string()),
        "{:?}",
        health.checks[0]
    );
}

#[tokio::test]
async fn calls_above_the_limit_wait() {
    let mut options = Options::default();
    options.in_flight = 2;
    let served = ServedBroker::start_with(Engine::Memory, options);
    let broker = remote(served.path()).await;
    let owner = broker.register(info(), TTL).await.unwrap();
    let spawn_wait = || {
        let broker = broker.clone();
        tokio::spawn(async move { broker.recv_commands(owner, TTL).await })
    };
    let (first, _second) = (spawn_wait(), spawn_wait());
    tokio::time::sleep(Duration::from_millis(20)).await;
    let summary = broker.summary();
    let mut summary = std::pin::pin!(summary);
    assert!(
        tokio::time::timeout(Duration::from_millis(50), &mut summary)
            .await
            .is_err()
    );
    first.abort();
    tokio::time::timeout(SOON, summary).await.unwrap().unwrap();
}

#[tokio::test]
async fn reconnects_to_a_replaced_server() {
    let mut served = ServedBroker::start(Engine::Sqlite);
    let broker = remote(served.path()).await;
    let owner = broker.register(info(), TTL).await.unwrap();
    let mut renewer = broker.lease_renewer(owner, TTL);
    assert!(matches!(
        renewer.renew(Heartbeat::default()),
        Ok(LeaseStatus::Alive(_))
    ));
    let waiting = {
        let broker = broker.clone();
        tokio::spawn(async move { broker.claim(request(owner, TTL)).await })
    };
    tokio::time::sleep(Duration::from_millis(20)).await;
    served.stop();
    let error = tokio::time::timeout(SOON, waiting)
        .await
        .unwrap()
        .unwrap()
        .unwrap_err();
    assert!(
        matches!(error, Error::AgentGone { .. }) && error.is_retryable(),
        "{error}"
    );
    let error = broker.summary().await.unwrap_err();
    assert!(
        error.is_retryable() && error.to_string().contains("no process serves there"),
        "{error}"
    );
    assert!(
        renewer
            .renew(Heartbeat::default())
            .unwrap_err()
            .is_retryable()
    );

    served.resume(Engine::Sqlite);
    let tid = submit(&*broker).await;
    assert!(matches!(
        renewer.renew(Heartbeat::default()),
        Ok(LeaseStatus::Alive(_))
    ));
    assert_eq!(
        broker.claim(request(owner, SOON)).await.unwrap()[0]
            .attempt_id
            .tid,
        tid
    );
    // Between two renewals, so that the renewer finds its connection closed and opens another
    // within one.
    served.stop();
    served.resume(Engine::Sqlite);
    assert!(matches!(
        renewer.renew(Heartbeat::default()),
        Ok(LeaseStatus::Alive(_))
    ));
}

#[tokio::test]
async fn a_call_in_flight_reports_the_end_of_the_server() {
    let mut served = ServedBroker::start(Engine::Sqlite);
    let broker = remote(served.path()).await;
    for _ in 0..5 {
        let submitting = {
            let broker = broker.clone();
            tokio::spawn(async move {
                broker
                    .submit(vec![NewTask::new(TaskSpec::command(["true"]))])
                    .await
            })
        };
        tokio::task::yield_now().await;
        served.stop();
        served.resume(Engine::Sqlite);
        // The outcome is reported either way, and it is right.
        match tokio::time::timeout(SOON, submitting)
            .await
            .unwrap()
            .unwrap()
        {
            Ok(stored) => assert_eq!(state(&*broker, stored[0].tid()).await, TaskState::Created),
            Err(error) => assert!(
                error.is_retryable() || matches!(error, Error::Unanswered { .. }),
                "{error}"
            ),
        }
    }
}

/// A proxy socket that can drop replies.
struct LossyProxy {
    path: PathBuf,
    drops_replies: Arc<AtomicBool>,
}

impl LossyProxy {
    fn in_front_of(server: PathBuf, directory: &Path) -> Self {
        let path = directory.join("lossy.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let drops_replies = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&drops_replies);
        // The threads end with the test process.
        thread::spawn(move || {
            for client in listener.incoming() {
                let (client, server) = (client.unwrap(), UnixStream::connect(&server).unwrap());
                let (from, to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                thread::spawn(move || pass(from, to, &AtomicBool::new(false)));
                let flag = Arc::clone(&flag);
                thread::spawn(move || pass(server, client, &flag));
            }
        });
        Self {
            path,
            drops_replies,
        }
    }

    /// Lets one connection succeed, and drops replies from then on.
    async fn reconnect_then_drop(&self, broker: &dyn Broker) {
        self.drops_replies.store(false, Ordering::SeqCst);
        broker.summary().await.unwrap();
        self.drops_replies.store(true, Ordering::SeqCst);
    }
}

/// Forwards bytes until one side closes; closes both when it is to drop them.
fn pass(mut from: UnixStream, mut to: UnixStream, lose: &AtomicBool) {
    let mut buf = [0; 4096];
    while let Ok(len @ 1..) = from.read(&mut buf) {
        if lose.load(Ordering::SeqCst) || to.write_all(&buf[..len]).is_err() {
            break;
        }
    }
    let _ = (
        from.shutdown(std::net::Shutdown::Both),
        to.shutdown(std::net::Shutdown::Both),
    );
}

#[tokio::test]
async fn a_claim_with_a_lost_reply_is_found_by_its_owner() {
    for engine in Engine::ALL {
        let served = ServedBroker::start(engine);
        let lossy = LossyProxy::in_front_of(served.path(), served.directory());
        let (broker, other) = (remote(&lossy.path).await, remote(served.path()).await);
        let owner = broker.register(info(), TTL).await.unwrap();
        let kept = submit(&*other).await;
        assert_eq!(
            broker.claim(request(owner, SOON)).await.unwrap()[0]
                .attempt_id
                .tid,
            kept
        );

        let lost = submit(&*other).await;
        lossy.drops_replies.store(true, Ordering::SeqCst);
        let error = broker.claim(request(owner, SOON)).await.unwrap_err();
        assert!(error.is_retryable(), "{error}");
        assert_eq!(
            state(&*other, lost).await,
            TaskState::Spawning,
            "{engine:?}: the claim was committed without the worker's knowledge"
        );

        lossy.drops_replies.store(false, Ordering::SeqCst);
        // As a worker does twice per lease.
        let assigned = broker
            .tasks(TaskFilter {
                worker: Some(owner),
                ..TaskFilter::default()
            })
            .await
            .unwrap();
        assert_eq!(
            assigned.iter().map(|task| task.tid).collect::<Vec<_>>(),
            [lost, kept],
            "{engine:?}"
        );
        let attempt_id = AttemptId {
            tid: lost,
            attempt: 1,
            owner,
        };
        broker
            .release(vec![Release {
                attempt_id,
                reason: "not held".into(),
            }])
            .await
            .unwrap();
        assert_eq!(state(&*other, lost).await, TaskState::Created);
    }
}

/// Stored, and the reply lost: a repetition would store it twice, so the error says that the
/// outcome is unknown.
#[tokio::test]
async fn a_submit_with_a_lost_reply_has_an_unknown_outcome() {
    for engine in Engine::ALL {
        let served = ServedBroker::start(engine);
        let lossy = LossyProxy::in_front_of(served.path(), served.directory());
        let (broker, other) = (remote(&lossy.path).await, remote(served.path()).await);
        let finished = submit(&*other).await;
        let owner = other.register(info(), TTL).await.unwrap();
        let attempt_id = other.claim(request(owner, SOON)).await.unwrap()[0].attempt_id;
        other
            .complete(vec![conformance::completion(
                attempt_id,
                ExitStatus::Code { code: 1 },
            )])
            .await
            .unwrap();
        let assert_unknown_outcome = |error: Error, what: &str| {
            assert!(
                matches!(error, Error::Unanswered { .. }) && !error.is_retryable(),
                "{engine:?}: {error}"
            );
            assert!(error.to_string().contains(what), "{engine:?}: {error}");
        };
        let queue: raddle_model::QueueName = "jobs".parse().unwrap();
        lossy.drops_replies.store(true, Ordering::SeqCst);
        let task = || vec![NewTask::new(TaskSpec::command(["true"]))];
        assert_unknown_outcome(
            broker.submit(task()).await.unwrap_err(),
            "has stored a task",
        );
        lossy.reconnect_then_drop(&*broker).await;
        assert_unknown_outcome(
            broker.resubmit(finished, false).await.unwrap_err(),
            "has stored a task",
        );
        lossy.reconnect_then_drop(&*broker).await;
        assert_unknown_outcome(
            broker
                .put(queue.clone(), vec!["x".into()])
                .await
                .unwrap_err(),
            "has stored a message",
        );
        lossy.reconnect_then_drop(&*broker).await;
        // Idempotent calls fail with a retryable error.
        let error = broker
            .complete(vec![conformance::completion(
                attempt_id,
                ExitStatus::Code { code: 1 },
            )])
            .await
            .unwrap_err();
        assert!(error.is_retryable(), "{engine:?}: {error}");
        lossy.drops_replies.store(false, Ordering::SeqCst);
        let stale = other.summary().await.unwrap().stale_writes;
        assert_eq!(stale, 1, "{engine:?}: the attempt had ended before");
        assert_eq!(
            broker.tasks(TaskFilter::default()).await.unwrap().len(),
            3,
            "{engine:?}: all tasks are stored"
        );
        let messages = broker
            .summarize(SummaryDetail {
                messages: true,
                ..SummaryDetail::default()
            })
            .await
            .unwrap()
            .messages;
        assert_eq!(
            messages.into_values().collect::<Vec<_>>(),
            [1],
            "{engine:?}"
        );
    }
}

/// The worker repeats the call and gets the recorded outcome.
#[tokio::test]
async fn a_repeated_completion_returns_the_recorded_outcome() {
    for engine in Engine::ALL {
        let served = ServedBroker::start(engine);
        let lossy = LossyProxy::in_front_of(served.path(), served.directory());
        let broker = remote(&lossy.path).await;
        submit(&*broker).await;
        let owner = broker.register(info(), TTL).await.unwrap();
        let attempt_id = broker.claim(request(owner, SOON)).await.unwrap()[0].attempt_id;
        let end = vec![conformance::completion(
            attempt_id,
            ExitStatus::Code { code: 0 },
        )];
        lossy.drops_replies.store(true, Ordering::SeqCst);
        assert!(
            broker
                .complete(end.clone())
                .await
                .unwrap_err()
                .is_retryable()
        );
        lossy.drops_replies.store(false, Ordering::SeqCst);
        assert_eq!(
            broker.complete(end.clone()).await.unwrap(),
            [CompletionOutcome::Finished(TaskState::Completed)],
            "{engine:?}"
        );
        assert_eq!(
            broker.complete(end).await.unwrap(),
            [CompletionOutcome::Stale],
            "{engine:?}"
        );
        assert_eq!(
            broker.summary().await.unwrap().stale_writes,
            1,
            "{engine:?}"
        );
    }
}

/// Without a server nothing can have been stored, so the call may be repeated.
#[tokio::test]
async fn a_submit_without_a_server_is_retryable() {
    let mut served = ServedBroker::start(Engine::Sqlite);
    let broker = remote(served.path()).await;
    broker.summary().await.unwrap();
    served.stop();
    let error = broker
        .submit(vec![NewTask::new(TaskSpec::command(["true"]))])
        .await
        .unwrap_err();
    assert!(error.is_retryable(), "{error}");
    served.resume(Engine::Sqlite);
    submit(&*broker).await;
    assert_eq!(broker.tasks(TaskFilter::default()).await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_late_claim_is_released() {
    let served = ServedBroker::start(Engine::Memory);
    let (one, other) = (remote(served.path()).await, remote(served.path()).await);
    let owner = one.register(info(), TTL).await.unwrap();
    for _ in 0..20 {
        let tid = submit(&*other).await;
        {
            // Sent with the first poll; the reply arrives while the future is not polled, and the
            // connection's task finds it.
            let mut claim = std::pin::pin!(one.claim(request(owner, SOON)));
            let polled = poll_once(&mut claim).await;
            assert!(!polled);
            wait_until("the server has claimed it", async || {
                (state(&*other, tid).await == TaskState::Spawning).then_some(())
            })
            .await;
        }
        wait_until("the task is released", async || {
            (state(&*other, tid).await == TaskState::Created).then_some(())
        })
        .await;
        let claims = one.claim(request(owner, SOON)).await.unwrap();
        assert_eq!(claims[0].attempt_id.tid, tid);
    }
}

/// Polls once. Returns whether the future is ready.
async fn poll_once<F: std::future::Future + Unpin>(future: &mut F) -> bool {
    std::future::poll_fn(|context| {
        std::task::Poll::Ready(std::pin::Pin::new(&mut *future).poll(context).is_ready())
    })
    .await
}

#[tokio::test]
async fn a_remote_broker_can_be_served_again() {
    let served = ServedBroker::start(Engine::Sqlite);
    let path = served.directory().join("second.sock");
    let inner: Arc<dyn Broker> = remote(served.path()).await;
    let agent = raddle_broker_remote::BrokerServer::bind(&path, inner)
        .await
        .unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let serving = tokio::spawn(agent.run(async { drop(stopped.await) }));
    let broker = remote(&path).await;
    let tid = submit(&*broker).await;
    let owner = broker.register(info(), TTL).await.unwrap();
    assert_eq!(
        broker.claim(request(owner, SOON)).await.unwrap()[0]
            .attempt_id
            .tid,
        tid
    );
    drop(stop);
    tokio::time::timeout(SOON, serving).await.unwrap().unwrap();
    assert!(!path.exists());
}
