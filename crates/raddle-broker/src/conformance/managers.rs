//! The queues of managers: a request is a task from the moment it is written.

use jiff::Timestamp;
use raddle_model::{
    AttemptReport, CapSet, ExitStatus, QueueName, Target, TaskState, Tid,
    manager::{PRIME, REQUEST},
    queue_name::{WAITING, requests},
    worker::WorkerInfo,
};
use serde_json::Value;

use super::{Fixture, Handle, support::*};
use crate::{
    AttemptStarted, ClaimRequest, Completion, Error, Result,
    queues::{self, Watch, WriteOutcome},
};

/// Registers a manager of this type that lists these tasks.
async fn manager(broker: &Handle, kind: &str, tasks: &str) -> Result<Tid> {
    let info = WorkerInfo {
        kind: kind.into(),
        capabilities: caps(tasks),
        queues: vec![requests(kind), WAITING.into()],
        concurrency: 0,
        max_workers: 4,
        ..info(kind)
    };
    broker.register(info, TTL).await
}

async fn send_request(broker: &Handle, queue: &str, text: &str) -> Result<Tid> {
    match queues::write(&**broker, &free(queue), vec![text.into()]).await?[..] {
        [WriteOutcome::Stored(tid)] => Ok(tid),
        ref other => panic!("one is stored: {other:?}"),
    }
}

async fn peek(broker: &Handle, queue: &str) -> Result<Vec<(Tid, String)>> {
    let shown = queues::peek(&**broker, &free(queue), 100).await?;
    Ok(shown
        .into_iter()
        .map(|message| (message.id, message.body))
        .collect())
}

/// A spawn request of a manager's worker.
fn for_manager(owner: Tid, kind: &str, tasks: &str) -> ClaimRequest {
    let mut caps: CapSet = caps(tasks);
    caps.insert(REQUEST).expect("a tag");
    ClaimRequest {
        caps,
        queues: vec![requests(kind), WAITING.into()],
        ..request(owner)
    }
}

/// Under the id of its message, with its text, below who is asked; and what became of it is in the
/// results.
pub async fn a_request_is_a_task(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let unix = manager(broker, "unix", "grep").await?;
    let queue = "worker.unix.requests";
    let text = r#"{"task": "grep", "params": {"pattern": "x"}}"#;
    let [good, bad] = [
        send_request(broker, queue, text).await?,
        send_request(broker, queue, "no JSON").await?,
    ];
    assert_eq!(
        peek(broker, queue).await?,
        [(good, text.to_owned()), (bad, "no JSON".into())]
    );
    let task = broker.task(good).await?.expect("it is stored");
    assert_eq!(
        (task.state, task.parent, task.spec.display_name()),
        (TaskState::Created, Some(unix), "grep")
    );
    assert_eq!(task.spec.target, Target::Request(text.into()));
    let queue_sizes = queues::list(&**broker, "worker.*").await?;
    assert_eq!(
        queue_sizes
            .iter()
            .map(|depth| (depth.queue.to_string(), depth.messages))
            .collect::<Vec<_>>(),
        [(queue.into(), 2)]
    );
    // It can be looked at, not taken: that would be a second way to lose it.
    assert!(matches!(
        queues::read(&**broker, &free(queue), 1, AT_ONCE).await,
        Err(Error::View(..))
    ));
    let owner = worker(broker).await?;
    let plain = ClaimRequest {
        queues: vec![queue.into()],
        ..request(owner)
    };
    assert!(
        broker.claim(plain).await?.is_empty(),
        "only the workers of managers read requests"
    );
    let claims = broker
        .claim(ClaimRequest {
            max: 2,
            ..for_manager(owner, "unix", "grep")
        })
        .await?;
    assert_eq!(
        claims
            .iter()
            .map(|claim| claim.attempt_id.tid)
            .collect::<Vec<_>>(),
        [good, bad]
    );
    assert!(peek(broker, queue).await?.is_empty());
    broker
        .mark_started(vec![AttemptStarted {
            attempt_id: claims[0].attempt_id,
            pid: Some(7),
        }])
        .await?;
    end(broker, claims[0].attempt_id, success()).await?;
    // It has never begun.
    let refused = AttemptReport::bare(
        ExitStatus::Rejected {
            message: "not JSON".into(),
        },
        Timestamp::now(),
    );
    broker
        .complete(vec![Completion {
            report: refused,
            ..completion(claims[1].attempt_id, success())
        }])
        .await?;
    for results in ["worker.unix.results", "raddle.spawn.results"] {
        let shown = peek(broker, results).await?;
        let shown: Vec<Value> = shown
            .iter()
            .map(|(_, body)| serde_json::from_str(body).expect("JSON"))
            .collect();
        let told: Vec<_> = shown
            .iter()
            .map(|result| (&result["tid"], &result["status"]))
            .collect();
        let (good, bad) = (Value::from(good.to_string()), Value::from(bad.to_string()));
        let expected = [
            (&good, &"spawned".into()),
            (&good, &"completed".into()),
            (&bad, &"refused".into()),
        ];
        assert_eq!(told, expected, "{results}");
        assert_eq!(shown[2]["error"], "refused: not JSON");
        assert!(matches!(
            queues::write(&**broker, &free(results), vec!["x".into()]).await,
            Err(Error::View(..))
        ));
    }
    assert!(peek(broker, "worker.ai.results").await?.is_empty());
    Ok(())
}

/// The least loaded of those that list it; the prime if none does; and who comes later if it waits.
pub async fn requests_find_their_manager(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let prime = manager(broker, PRIME, "").await?;
    let unix = manager(broker, "unix", "grep").await?;
    let parent = async |tid| -> Result<(String, Option<Tid>)> {
        let task = broker.task(tid).await?.expect("it is stored");
        Ok((task.spec.queue, task.parent))
    };
    let to = "raddle.spawn.requests";
    let listed = send_request(broker, to, r#"{"task": "grep"}"#).await?;
    assert_eq!(
        parent(listed).await?,
        ("worker.unix.requests".into(), Some(unix))
    );
    let unlisted = send_request(broker, to, r#"{"task": "awk"}"#).await?;
    assert_eq!(parent(unlisted).await?, (to.into(), Some(prime)));
    let patient = send_request(broker, to, r#"{"task": "awk", "wait": true}"#).await?;
    assert_eq!(parent(patient).await?, (WAITING.into(), None));
    let spelled_out =
        send_request(broker, to, r#"{"spec": {"target": {"command": ["true"]}}}"#).await?;
    assert_eq!(parent(spelled_out).await?, (to.into(), Some(prime)));
    let waiting = peek(broker, to)
        .await?
        .into_iter()
        .map(|(tid, _)| tid)
        .collect::<Vec<_>>();
    assert_eq!(
        waiting,
        [unlisted, patient, spelled_out],
        "requests without a manager are shown too"
    );
    let owner = worker(broker).await?;
    let taken = async |kind: &str, tasks: &str| -> Result<Vec<Tid>> {
        let claims = broker
            .claim(ClaimRequest {
                max: 9,
                ..for_manager(owner, kind, tasks)
            })
            .await?;
        Ok(claims.iter().map(|claim| claim.attempt_id.tid).collect())
    };
    assert_eq!(taken("unix", "grep").await?, [listed]);
    assert_eq!(taken("text", "awk").await?, [patient]);
    assert_eq!(taken(PRIME, "").await?, [unlisted, spelled_out]);
    Ok(())
}

/// Results wake their watchers, and a command to the managers of a type reaches only them.
pub async fn watches_results_and_commands_managers(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let unix = manager(broker, "unix", "grep").await?;
    manager(broker, "ai", "ask").await?;
    let mut watch = Watch::new(free("worker.unix.results"), 0);
    assert!(watch.next(&**broker, AT_ONCE).await?.is_empty());
    let tid = send_request(broker, "worker.unix.requests", r#"{"task": "grep"}"#).await?;
    let owner = worker(broker).await?;
    let attempt_id = broker.claim(for_manager(owner, "unix", "grep")).await?[0].attempt_id;
    end(broker, attempt_id, success()).await?;
    let seen = watch.next(&**broker, SOON).await?;
    let is_told = |status: &str| {
        seen.iter()
            .any(|one| one.body.contains(status) && one.body.contains(&tid.to_string()))
    };
    assert!(
        seen.len() == 2 && is_told("spawned") && is_told("completed"),
        "{seen:?}"
    );
    let told = queues::write(&**broker, &free("worker.unix.control"), vec!["PING".into()]).await?;
    assert!(
        matches!(told[..], [WriteOutcome::Control(tid, _)] if tid == unix),
        "{told:?}"
    );
    let status = peek(broker, "worker.unix.status").await?;
    assert!(
        status.len() == 1 && status[0].0 == unix && status[0].1.contains("worker.unix.requests"),
        "{status:?}"
    );
    let refused = queues::move_messages(
        &**broker,
        &free("x"),
        &QueueName::Free("worker.unix.requests".into()),
        1,
    )
    .await;
    assert!(
        matches!(refused, Err(Error::ControlQueue(_))),
        "{refused:?}"
    );
    Ok(())
}

/// A worker that another task has started is shown below it.
pub async fn a_worker_has_a_parent(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let parent = submit(broker, spec("parent")).await?;
    let tid = broker
        .register(
            WorkerInfo {
                parent: Some(parent),
                ..info("child")
            },
            TTL,
        )
        .await?;
    assert_eq!(
        broker.task(tid).await?.expect("workers are tasks").parent,
        Some(parent)
    );
    let entry = broker
        .workers()
        .await?
        .into_iter()
        .find(|entry| entry.tid == tid)
        .expect("it is alive");
    assert_eq!(entry.info.parent, Some(parent));
    Ok(())
}
