//! Clients that continue without their broker server.

use std::time::{Duration, Instant};

use raddle_broker::{
    ChainRequest, CompletionOutcome, Error, LeaseStatus, Leases, Queries, Registry, TaskFilter,
    Tasks, conformance,
};
use raddle_broker_connect::connect;
use raddle_broker_remote::Remote;
use raddle_model::{ExitStatus, TaskSpec, TaskState, worker::Heartbeat};

use crate::support::*;

#[tokio::test]
async fn a_client_continues_without_its_server() {
    for engine in [Engine::Sqlite, Engine::Redis] {
        let mut served = ServedBroker::start(engine);
        let url = served.url(engine);
        let remote = Remote::connect_or(&served.path(), url.clone())
            .await
            .unwrap();
        let owner = remote.register(info(), TTL).await.unwrap();
        let mut renewer = remote.lease_renewer(owner, TTL);
        let tid = submit(&remote).await;
        let claims = remote.claim(request(owner, SOON)).await.unwrap();
        // One call is waiting when the server stops, as a worker waits for control commands.
        let (stopped, commands) = tokio::join!(
            tokio::task::spawn_blocking(move || {
                served.stop();
                served
            }),
            remote.recv_commands(owner, Duration::from_millis(200)),
        );
        assert_eq!(commands.unwrap(), [], "{engine:?}");
        let (heartbeat, _renewer) =
            tokio::task::spawn_blocking(move || (renewer.renew(Heartbeat::default()), renewer))
                .await
                .unwrap();
        assert_eq!(heartbeat.unwrap(), LeaseStatus::Alive(vec![]), "{engine:?}");
        let finish = conformance::completion(claims[0].attempt_id, ExitStatus::Code { code: 0 });
        assert_eq!(
            remote.complete(vec![finish]).await.unwrap(),
            [CompletionOutcome::Finished(TaskState::Completed)]
        );
        remote.deregister(owner, None).await.unwrap();
        let direct = connect(&url).await.unwrap();
        assert_eq!(
            direct.task(tid).await.unwrap().unwrap().state,
            TaskState::Completed
        );
        assert_eq!(direct.workers().await.unwrap(), []);
        drop(stopped);
    }
}

#[tokio::test]
async fn opens_the_engine_directly_without_a_server() {
    let mut served = ServedBroker::start(Engine::Sqlite);
    let url = served.url(Engine::Sqlite);
    served.stop();
    let began = Instant::now();
    let remote = Remote::connect_or(&served.path(), url).await.unwrap();
    let tid = submit(&remote).await;
    assert!(remote.task(tid).await.unwrap().is_some() && began.elapsed() < SOON);
    assert!(matches!(
        Remote::connect(&served.path()).await.err(),
        Some(Error::AgentGone { .. })
    ));
}

/// Chained tasks are numbered, so that a repetition is detected.
#[tokio::test]
async fn a_chain_is_not_repeated_after_the_loss_of_the_server() {
    for engine in [Engine::Sqlite, Engine::Redis] {
        let mut served = ServedBroker::start(engine);
        let url = served.url(engine);
        let remote = Remote::connect_or(&served.path(), url.clone())
            .await
            .unwrap();
        let owner = remote.register(info(), TTL).await.unwrap();
        submit(&remote).await;
        let attempt_id = remote.claim(request(owner, SOON)).await.unwrap()[0].attempt_id;
        let chain = |told, tasks| ChainRequest {
            attempt_id,
            tasks: vec![TaskSpec::command(["true"]); tasks],
            offset: Some(told),
        };
        assert_eq!(remote.chain(chain(0, 2)).await.unwrap(), 2, "{engine:?}");
        let stop = move || {
            served.stop();
            served
        };
        let _directory = tokio::task::spawn_blocking(stop).await.unwrap();
        // As if the reply had been lost.
        assert_eq!(remote.chain(chain(0, 2)).await.unwrap(), 2, "{engine:?}");
        assert_eq!(remote.chain(chain(2, 1)).await.unwrap(), 3, "{engine:?}");
        let finish = conformance::completion(attempt_id, ExitStatus::Code { code: 0 });
        assert_eq!(
            remote.complete(vec![finish]).await.unwrap(),
            [CompletionOutcome::Finished(TaskState::Completed)]
        );
        let direct = connect(&url).await.unwrap();
        assert_eq!(
            direct.tasks(TaskFilter::default()).await.unwrap().len(),
            4,
            "{engine:?}"
        );
    }
}
