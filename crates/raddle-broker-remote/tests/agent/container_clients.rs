//! Untrusted clients: a task in a container can use the socket of its worker.

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

/// The lease of workers, which is longer than a test.
const LEASE: Duration = Duration::from_secs(60);

/// A socket for container workers, and a direct connection to its broker.
async fn serve_containers() -> (ServedBroker, Arc<dyn Broker>) {
    let mut served = ServedBroker::start_with(Engine::Sqlite, options());
    let url = served.url(Engine::Sqlite);
    (served, connect(&url).await.unwrap())
}

fn options() -> Options {
    let clients = ContainerClients::new("cpu".parse().unwrap(), vec!["default".into()]);
    Options::default().with_container_clients(Some(clients))
}

fn one_shot_info() -> WorkerInfo {
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
async fn a_container_worker_runs_tasks() {
    let (served, host) = serve_containers().await;
    let client = remote(served.path()).await;
    let owner = client.register(one_shot_info(), LEASE).await.unwrap();
    assert!(matches!(
        client
            .lease_renewer(owner, LEASE)
            .renew(Heartbeat::default()),
        Ok(LeaseStatus::Alive(_))
    ));
    let tid = submit(&*host).await;
    let attempt_id = client.claim(request(owner, SOON)).await.unwrap()[0].attempt_id;
    assert_eq!(
        attempt_id,
        AttemptId {
            tid,
            attempt: 1,
            owner
        }
    );
    let states = vec![TaskState::Spawning, TaskState::Running];
    let held = client
        .tasks(TaskFilter {
            worker: Some(owner),
            states,
            ..TaskFilter::default()
        })
        .await
        .unwrap();
    assert_eq!(held.iter().map(|task| task.tid).collect::<Vec<_>>(), [tid]);
    client
        .mark_started(vec![AttemptStarted {
            attempt_id,
            pid: Some(7),
        }])
        .await
        .unwrap();
    client
        .append_output(attempt_id, OutputStream::Stdout, b"out".to_vec())
        .await
        .unwrap();
    host.control(tid, "status".parse().unwrap()).await.unwrap();
    assert_eq!(client.recv_commands(owner, SOON).await.unwrap()[0].tid, tid);
    for target in [tid, owner] {
        client
            .put(
                QueueName::Task(target, TaskQueue::CtrlOut),
                vec!["{}".into()],
            )
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
        client.complete(end()).await.unwrap(),
        [CompletionOutcome::Finished(TaskState::Completed)]
    );
    assert_eq!(
        client.complete(end()).await.unwrap(),
        [CompletionOutcome::Stale],
        "the broker reports a stale write"
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
    let attempt_id = client.claim(request(owner, SOON)).await.unwrap()[0].attempt_id;
    // Another connection, as after a restart of the server.
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
    // A worker that is not registered any more gets an error, and can register again.
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
async fn a_container_worker_cannot_submit_read_or_control() {
    let (served, host) = serve_containers().await;
    let client = remote(served.path()).await;
    let queue: QueueName = "jobs".parse().unwrap();
    host.put(queue.clone(), vec!["secret".into()])
        .await
        .unwrap();
    let tid = submit(&*host).await;
    assert_refused(
        client.submit(vec![NewTask::new(spec("default"))]).await,
        "submit",
    );
    assert_refused(client.resubmit(tid, false).await, "resubmit");
    let chain = ChainRequest {
        attempt_id: AttemptId {
            tid,
            attempt: 1,
            owner: tid,
        },
        tasks: vec![spec("default")],
        offset: Some(0),
    };
    assert_refused(client.chain(chain).await, "chain");
    assert_refused(
        client.control(tid, "kill".parse().unwrap()).await,
        "control",
    );
    assert_refused(client.tasks(TaskFilter::default()).await, "tasks");
    assert_refused(
        client.resolve_short_id(tid.short()).await,
        "tasks by their last digits",
    );
    assert_refused(
        client
            .tasks(TaskFilter {
                among: Some(vec![tid, tid]),
                ..TaskFilter::default()
            })
            .await,
        "some tasks",
    );
    assert_refused(client.workers().await, "workers");
    assert_refused(client.summary().await, "summary");
    assert_refused(client.health().await, "health");
    assert_refused(client.purge().await, "purge");
    assert_refused(client.reclaim().await, "reclaim");
    assert_refused(client.put(queue.clone(), vec!["x".into()]).await, "put");
    assert_refused(client.take(queue.clone(), 1, Duration::ZERO).await, "take");
    let broadcast: QueueName = "raddle.workers.control".parse().unwrap();
    assert_refused(
        client.put(broadcast.clone(), vec!["kill".into()]).await,
        "broadcast",
    );
    assert_eq!(state(&*host, tid).await, TaskState::Created);
    assert_eq!(host.tasks(TaskFilter::default()).await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_container_worker_is_a_one_shot_worker_of_its_class() {
    let (served, host) = serve_containers().await;
    let client = remote(served.path()).await;
    assert_refused(client.register(info(), LEASE).await, "resident");
    assert_refused(
        client
            .register(
                WorkerInfo {
                    concurrency: 9,
                    ..one_shot_info()
                },
                LEASE,
            )
            .await,
        "many at a time",
    );
    assert_refused(
        client
            .register(
                WorkerInfo {
                    queues: vec!["root".into()],
                    ..one_shot_info()
                },
                LEASE,
            )
            .await,
        "queue",
    );
    assert_refused(
        client
            .register(
                WorkerInfo {
                    callee: Some(Box::default()),
                    ..one_shot_info()
                },
                LEASE,
            )
            .await,
        "calls",
    );
    assert_refused(client.register(one_shot_info(), TTL).await, "a long lease");
    assert_refused(
        client.register_ephemeral(one_shot_info(), LEASE).await,
        "for another",
    );

    let capabilities = "cpu,gpu".parse().unwrap();
    let owner = client
        .register(
            WorkerInfo {
                capabilities,
                ..one_shot_info()
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
    let other_queue = submit_to(&*host, spec("root")).await;
    let needs_gpu = submit_to(
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
        client
            .claim(ClaimRequest {
                queues: vec!["root".into()],
                ..claim()
            })
            .await,
        "queue",
    );
    assert_refused(
        client
            .claim(ClaimRequest {
                only: Some(other_queue),
                ..claim()
            })
            .await,
        "by name",
    );
    assert_refused(client.task(other_queue).await, "reading elsewhere");
    assert!(
        client.claim(claim()).await.unwrap().is_empty(),
        "its class does not have the capability"
    );
    for tid in [other_queue, needs_gpu] {
        assert_eq!(state(&*host, tid).await, TaskState::Created);
    }
    submit(&*host).await;
    submit(&*host).await;
    assert_eq!(
        client.claim(claim()).await.unwrap().len(),
        1,
        "one at a time"
    );
}

#[tokio::test]
async fn a_container_worker_cannot_act_for_others() {
    let (served, host) = serve_containers().await;
    let client = remote(served.path()).await;
    client.register(one_shot_info(), LEASE).await.unwrap();
    let other = host.register(info(), LEASE).await.unwrap();
    assert_refused(client.claim(request(other, Duration::ZERO)).await, "claim");
    assert_refused(
        client.recv_commands(other, Duration::ZERO).await,
        "controls",
    );
    assert_refused(client.deregister(other, None).await, "deregister");
    assert_refused(
        client
            .tasks(TaskFilter {
                worker: Some(other),
                ..TaskFilter::default()
            })
            .await,
        "its tasks",
    );
    assert_refused(
        client
            .lease_renewer(other, LEASE)
            .renew(Heartbeat::default()),
        "renewal",
    );
    let unknown_tid = Tid::from_u64(1_700_000_000_000_000_000).unwrap();
    for target in [other, unknown_tid] {
        assert_refused(
            client
                .put(
                    QueueName::Task(target, TaskQueue::CtrlOut),
                    vec!["{}".into()],
                )
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
    assert_refused(
        client.complete(end(next)).await,
        "an attempt that was not claimed",
    );
    assert_refused(
        client
            .complete(end(AttemptId {
                tid: other,
                attempt: 0,
                owner: other,
            }))
            .await,
        "a worker",
    );
    let attempt_id = host.claim(request(other, SOON)).await.unwrap()[0].attempt_id;
    assert_refused(client.complete(end(attempt_id)).await, "finish");
    assert_refused(
        client
            .mark_started(vec![AttemptStarted {
                attempt_id,
                pid: None,
            }])
            .await,
        "started",
    );
    assert_refused(
        client
            .release(vec![Release {
                attempt_id,
                reason: "mine".into(),
            }])
            .await,
        "release",
    );
    assert_refused(client.mark_paused(attempt_id, true).await, "paused");
    assert_refused(
        client
            .append_output(attempt_id, OutputStream::Stdout, b"forged".to_vec())
            .await,
        "output",
    );
    assert_refused(
        client
            .put(QueueName::Task(tid, TaskQueue::CtrlOut), vec!["{}".into()])
            .await,
        "answers",
    );
    assert_eq!(state(&*host, tid).await, TaskState::Spawning);
    assert_eq!(host.workers().await.unwrap().len(), 2);
}
