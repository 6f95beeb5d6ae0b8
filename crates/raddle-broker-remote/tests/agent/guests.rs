//! Clients that are not trusted: a task in a container has the socket of its worker.

use std::{sync::Arc, time::Duration};

use raddle_broker::{
    AttemptId, AttemptStarted, Broker, ChainRequest, ClaimRequest, CompletionOutcome, Error,
    LeaseStatus, NewTask, OutputStream, Release, Result, TaskFilter, conformance,
};
use raddle_broker_connect::connect;
use raddle_broker_remote::{ContainerClients, Options};
use raddle_model::{
    ExitStatus, QueueName, TaskSpec, TaskState, Tid,
    queue_name::TaskQueue,
    worker::{Heartbeat, WorkerInfo},
};

use crate::support::*;

/// As long as workers have it, and longer than a case takes.
const LEASE: Duration = Duration::from_secs(60);

/// A socket for guests, and the broker behind it, as others have it.
async fn hosted() -> (Served, Arc<dyn Broker>) {
    let mut served = Served::start_with(Engine::Sqlite, options());
    let url = served.url(Engine::Sqlite);
    (served, connect(&url).await.unwrap())
}

fn options() -> Options {
    let guests = ContainerClients::new("cpu".parse().unwrap(), vec!["default".into()]);
    Options::default().with_container_clients(Some(guests))
}

fn one_shot() -> WorkerInfo {
    let capabilities = "cpu".parse().unwrap();
    WorkerInfo {
        kind: "one-shot".into(),
        concurrency: 1,
        capabilities,
        ..info()
    }
}

fn spec(queue: &str) -> TaskSpec {
    TaskSpec {
        queue: queue.into(),
        ..TaskSpec::command(["true"])
    }
}

async fn submit_to(broker: &dyn Broker, spec: TaskSpec) -> Tid {
    broker.submit(vec![NewTask::new(spec)]).await.unwrap()[0].tid()
}

#[track_caller]
fn assert_refused<T: std::fmt::Debug>(outcome: Result<T>, what: &str) {
    let error = outcome.expect_err(what);
    assert!(
        matches!(error, Error::AgentRefused { .. }) && !error.is_retryable(),
        "{what}: {error}"
    );
    assert!(
        error
            .to_string()
            .contains("it serves only what workers in containers need"),
        "{what}: {error}"
    );
}

#[tokio::test]
async fn a_guest_that_is_a_worker_works() {
    let (served, host) = hosted().await;
    let guest = remote(served.path()).await;
    let owner = guest.register(one_shot(), LEASE).await.unwrap();
    assert!(matches!(
        guest
            .lease_renewer(owner, LEASE)
            .renew(Heartbeat::default()),
        Ok(LeaseStatus::Alive(_))
    ));
    let tid = submit(&*host).await;
    let attempt_id = guest.claim(request(owner, SOON)).await.unwrap()[0].attempt_id;
    assert_eq!(
        attempt_id,
        AttemptId {
            tid,
            attempt: 1,
            owner
        }
    );
    let states = vec![TaskState::Spawning, TaskState::Running];
    let held = guest
        .tasks(TaskFilter {
            worker: Some(owner),
            states,
            ..TaskFilter::default()
        })
        .await
        .unwrap();
    assert_eq!(held.iter().map(|task| task.tid).collect::<Vec<_>>(), [tid]);
    guest
        .mark_started(vec![AttemptStarted {
            attempt_id,
            pid: Some(7),
        }])
        .await
        .unwrap();
    guest
        .append_output(attempt_id, OutputStream::Stdout, b"out".to_vec())
        .await
        .unwrap();
    host.control(tid, "status".parse().unwrap()).await.unwrap();
    assert_eq!(guest.recv_commands(owner, SOON).await.unwrap()[0].tid, tid);
    for of in [tid, owner] {
        guest
            .put(QueueName::Task(of, TaskQueue::CtrlOut), vec!["{}".into()])
            .await
            .unwrap();
    }
    let end = || {
        vec![conformance::completion(
            attempt_id,
            ExitStatus::Code { code: 0 },
        )]
    };
    assert_eq!(
        guest.complete(end()).await.unwrap(),
        [CompletionOutcome::Finished(TaskState::Completed)]
    );
    assert_eq!(
        guest.complete(end()).await.unwrap(),
        [CompletionOutcome::Stale],
        "it is told so by the broker"
    );
    assert_eq!(
        host.read_output(
            attempt_id.tid,
            attempt_id.attempt,
            OutputStream::Stdout,
            0,
            9
        )
        .await
        .unwrap(),
        b"out"
    );

    let tid = submit(&*host).await;
    let attempt_id = guest.claim(request(owner, SOON)).await.unwrap()[0].attempt_id;
    // Another connection, as after the end of an agent.
    let again = remote(served.path()).await;
    again
        .release(vec![Release {
            attempt_id,
            reason: "no time".into(),
        }])
        .await
        .unwrap();
    assert_eq!(state(&*host, tid).await, TaskState::Created);
    again.deregister(owner, None).await.unwrap();
    assert!(host.workers().await.unwrap().is_empty());
    // One that is not registered any more is told so, and can register again.
    assert!(
        matches!(again.claim(request(owner, SOON)).await, Err(Error::NotFound(gone)) if gone == owner)
    );
    assert!(matches!(
        again
            .lease_renewer(owner, LEASE)
            .renew(Heartbeat::default()),
        Ok(LeaseStatus::Expired)
    ));
}

#[tokio::test]
async fn a_guest_submits_nothing_and_reads_nothing_and_controls_nobody() {
    let (served, host) = hosted().await;
    let guest = remote(served.path()).await;
    let queue: QueueName = "jobs".parse().unwrap();
    host.put(queue.clone(), vec!["secret".into()])
        .await
        .unwrap();
    let tid = submit(&*host).await;
    assert_refused(
        guest.submit(vec![NewTask::new(spec("default"))]).await,
        "submit",
    );
    assert_refused(guest.resubmit(tid, false).await, "resubmit");
    let chain = ChainRequest {
        attempt_id: AttemptId {
            tid,
            attempt: 1,
            owner: tid,
        },
        tasks: vec![spec("default")],
        offset: Some(0),
    };
    assert_refused(guest.chain(chain).await, "chain");
    assert_refused(guest.control(tid, "kill".parse().unwrap()).await, "control");
    assert_refused(guest.tasks(TaskFilter::default()).await, "tasks");
    assert_refused(
        guest.resolve_short_id(tid.short()).await,
        "tasks by their last digits",
    );
    assert_refused(
        guest
            .tasks(TaskFilter {
                among: Some(vec![tid, tid]),
                ..TaskFilter::default()
            })
            .await,
        "some tasks",
    );
    assert_refused(guest.workers().await, "workers");
    assert_refused(guest.summary().await, "summary");
    assert_refused(guest.health().await, "health");
    assert_refused(guest.purge().await, "purge");
    assert_refused(guest.reclaim().await, "reclaim");
    assert_refused(guest.put(queue.clone(), vec!["x".into()]).await, "put");
    assert_refused(guest.take(queue.clone(), 1, Duration::ZERO).await, "take");
    let broadcast: QueueName = "raddle.workers.control".parse().unwrap();
    assert_refused(
        guest.put(broadcast.clone(), vec!["kill".into()]).await,
        "broadcast",
    );
    assert_eq!(state(&*host, tid).await, TaskState::Created);
    assert_eq!(host.tasks(TaskFilter::default()).await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_guest_is_a_one_shot_worker_of_its_class() {
    let (served, host) = hosted().await;
    let guest = remote(served.path()).await;
    assert_refused(guest.register(info(), LEASE).await, "resident");
    assert_refused(
        guest
            .register(
                WorkerInfo {
                    concurrency: 9,
                    ..one_shot()
                },
                LEASE,
            )
            .await,
        "many at a time",
    );
    assert_refused(
        guest
            .register(
                WorkerInfo {
                    queues: vec!["root".into()],
                    ..one_shot()
                },
                LEASE,
            )
            .await,
        "queue",
    );
    assert_refused(
        guest
            .register(
                WorkerInfo {
                    callee: Some(Box::default()),
                    ..one_shot()
                },
                LEASE,
            )
            .await,
        "calls",
    );
    assert_refused(guest.register(one_shot(), TTL).await, "a long lease");
    assert_refused(
        guest.register_ephemeral(one_shot(), LEASE).await,
        "for another",
    );

    let capabilities = "cpu,gpu".parse().unwrap();
    let owner = guest
        .register(
            WorkerInfo {
                capabilities,
                ..one_shot()
            },
            LEASE,
        )
        .await
        .unwrap();
    assert_eq!(
        host.workers().await.unwrap()[0]
            .info
            .capabilities
            .to_string(),
        "cpu"
    );
    let elsewhere = submit_to(&*host, spec("root")).await;
    let greater = submit_to(
        &*host,
        TaskSpec {
            requires: "gpu".parse().unwrap(),
            ..spec("default")
        },
    )
    .await;
    let claim = || ClaimRequest {
        caps: "cpu,gpu".parse().unwrap(),
        max: 100,
        ..request(owner, Duration::ZERO)
    };
    assert_refused(
        guest
            .claim(ClaimRequest {
                queues: vec!["root".into()],
                ..claim()
            })
            .await,
        "queue",
    );
    assert_refused(
        guest
            .claim(ClaimRequest {
                only: Some(elsewhere),
                ..claim()
            })
            .await,
        "by name",
    );
    assert_refused(guest.task(elsewhere).await, "reading elsewhere");
    assert!(
        guest.claim(claim()).await.unwrap().is_empty(),
        "a capability that its class has not"
    );
    for tid in [elsewhere, greater] {
        assert_eq!(state(&*host, tid).await, TaskState::Created);
    }
    submit(&*host).await;
    submit(&*host).await;
    assert_eq!(
        guest.claim(claim()).await.unwrap().len(),
        1,
        "one at a time"
    );
}

#[tokio::test]
async fn a_guest_does_not_speak_for_others() {
    let (served, host) = hosted().await;
    let guest = remote(served.path()).await;
    guest.register(one_shot(), LEASE).await.unwrap();
    let other = host.register(info(), LEASE).await.unwrap();
    assert_refused(guest.claim(request(other, Duration::ZERO)).await, "claim");
    assert_refused(guest.recv_commands(other, Duration::ZERO).await, "controls");
    assert_refused(guest.deregister(other, None).await, "deregister");
    assert_refused(
        guest
            .tasks(TaskFilter {
                worker: Some(other),
                ..TaskFilter::default()
            })
            .await,
        "its tasks",
    );
    assert_refused(
        guest
            .lease_renewer(other, LEASE)
            .renew(Heartbeat::default()),
        "beat",
    );
    let nobody = Tid::from_u64(1_700_000_000_000_000_000).unwrap();
    for of in [other, nobody] {
        assert_refused(
            guest
                .put(QueueName::Task(of, TaskQueue::CtrlOut), vec!["{}".into()])
                .await,
            "answers",
        );
    }

    let tid = submit(&*host).await;
    let next = AttemptId {
        tid,
        attempt: 1,
        owner: other,
    };
    let end = |attempt_id| {
        vec![conformance::completion(
            attempt_id,
            ExitStatus::Code { code: 0 },
        )]
    };
    assert_refused(guest.complete(end(next)).await, "what nobody has begun");
    assert_refused(
        guest
            .complete(end(AttemptId {
                tid: other,
                attempt: 0,
                owner: other,
            }))
            .await,
        "a worker",
    );
    let attempt_id = host.claim(request(other, SOON)).await.unwrap()[0].attempt_id;
    assert_refused(guest.complete(end(attempt_id)).await, "finish");
    assert_refused(
        guest
            .mark_started(vec![AttemptStarted {
                attempt_id,
                pid: None,
            }])
            .await,
        "started",
    );
    assert_refused(
        guest
            .release(vec![Release {
                attempt_id,
                reason: "mine".into(),
            }])
            .await,
        "release",
    );
    assert_refused(guest.mark_paused(attempt_id, true).await, "paused");
    assert_refused(
        guest
            .append_output(attempt_id, OutputStream::Stdout, b"forged".to_vec())
            .await,
        "output",
    );
    assert_refused(
        guest
            .put(QueueName::Task(tid, TaskQueue::CtrlOut), vec!["{}".into()])
            .await,
        "answers",
    );
    assert_eq!(state(&*host, tid).await, TaskState::Spawning);
    assert_eq!(host.workers().await.unwrap().len(), 2);
}
