//! Workers that are the process of an attempt: a task and a worker under one id.

use raddle_model::{ControlCommand, ControlMessage, HumanDuration, TaskEventKind, TaskState, Tid};

use super::{Fixture, Handle, support::*};
use crate::{AttemptId, CompletionOutcome, Error, LeaseStatus, Result, WorkerTask};

/// Submits a task, has `parent` begin it, and registers its process as a worker.
async fn spawn(broker: &Handle, parent: Tid) -> Result<AttemptId> {
    submit(broker, retrying(3, HumanDuration::secs(0))).await?;
    let attempt_id = begin(broker, parent).await?;
    assert_eq!(register(broker, attempt_id).await?, attempt_id.tid);
    Ok(attempt_id)
}

/// Registers the process of an attempt with a lease that [`outlive`] has run out.
async fn register_mortal(broker: &Handle, attempt_id: AttemptId) -> Result<()> {
    let task = WorkerTask::Attempt(attempt_id);
    loop {
        let tid = broker
            .register_worker(info("spawned"), SHORT_TTL, task)
            .await?;
        if matches!(renew(broker, tid, TTL)?, LeaseStatus::Alive(_)) {
            return Ok(());
        }
    }
}

async fn register(broker: &Handle, attempt_id: AttemptId) -> Result<Tid> {
    broker
        .register_worker(info("spawned"), TTL, WorkerTask::Attempt(attempt_id))
        .await
}

async fn registered(broker: &Handle) -> Result<Vec<Tid>> {
    let entries = broker.workers().await?;
    Ok(entries.iter().map(|entry| entry.tid).collect())
}

/// It leaves the registry without ending its task.
pub async fn a_spawned_worker_has_the_id_of_its_task(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let parent = worker(broker).await?;
    let attempt_id = spawn(broker, parent).await?;
    assert_eq!(registered(broker).await?, [parent, attempt_id.tid]);
    let inner = submit(broker, spec("inner")).await?;
    assert_eq!(take(broker, attempt_id.tid).await?.owner, attempt_id.tid);
    broker.deregister(attempt_id.tid, None).await?;
    assert_eq!(registered(broker).await?, [parent]);
    assert_eq!(view(broker, inner).await?.state, TaskState::Created);
    // Only the worker that runs it ends the task.
    let task = view(broker, attempt_id.tid).await?;
    assert_eq!(
        (task.state, task.worker),
        (TaskState::Running, Some(parent))
    );
    assert_eq!(
        end(broker, attempt_id, success()).await?,
        CompletionOutcome::Finished(TaskState::Completed)
    );
    Ok(())
}

/// As a worker does.
pub async fn a_spawned_worker_receives_its_commands(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let parent = worker(broker).await?;
    let AttemptId { tid, .. } = spawn(broker, parent).await?;
    let send = async |command| broker.control(tid, ControlMessage::new(command)).await;
    let bodies = async |owner| -> Result<Vec<String>> {
        let deliveries = broker.recv_commands(owner, AT_ONCE).await?;
        assert!(deliveries.iter().all(|delivery| delivery.tid == tid));
        Ok(deliveries.into_iter().map(|it| it.body).collect())
    };
    send(ControlCommand::Pause).await?;
    send(ControlCommand::Kill).await?;
    assert!(bodies(parent).await?.is_empty());
    assert_eq!(bodies(tid).await?, ["PAUSE", "KILL"]);
    // Without a registration, the worker that runs the task receives them.
    broker.deregister(tid, None).await?;
    send(ControlCommand::Ping).await?;
    assert_eq!(bodies(parent).await?, ["PING"]);
    Ok(())
}

/// The worker that runs it reports how the task ended.
pub async fn a_spawned_worker_is_lost_without_the_end_of_its_task(
    store: &dyn Fixture,
) -> Result<()> {
    let broker = store.broker();
    let parent = worker(broker).await?;
    let attempt_id = spawn(broker, parent).await?;
    register_mortal(broker, attempt_id).await?;
    let inner = submit(broker, spec("inner")).await?;
    begin(broker, attempt_id.tid).await?;
    outlive(broker, attempt_id.tid).await?;
    broker.reclaim().await?;
    assert_eq!(registered(broker).await?, [parent]);
    assert_eq!(view(broker, inner).await?.worker, None);
    assert_eq!(
        view(broker, attempt_id.tid).await?.state,
        TaskState::Running
    );
    Ok(())
}

/// The processes of its earlier attempt are gone.
pub async fn a_restarted_worker_does_not_hold_what_it_held(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let parent = worker(broker).await?;
    let first = spawn(broker, parent).await?;
    let inner = submit(broker, spec("inner")).await?;
    begin(broker, first.tid).await?;
    end(broker, first, failure()).await?;
    let second = begin(broker, parent).await?;
    assert_eq!((second.tid, second.attempt), (first.tid, 2));
    register(broker, second).await?;
    assert_eq!(view(broker, inner).await?.worker, None);
    assert_eq!(registered(broker).await?, [parent, second.tid]);
    Ok(())
}

/// Nor the attempt of another owner.
pub async fn a_stale_attempt_cannot_become_a_worker(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let parent = worker(broker).await?;
    let tid = submit(broker, retrying(3, HumanDuration::secs(0))).await?;
    let first = begin(broker, parent).await?;
    let foreign = AttemptId {
        owner: tid,
        ..first
    };
    end(broker, first, failure()).await?;
    begin(broker, parent).await?;
    for stale in [first, foreign] {
        let refused = register(broker, stale).await;
        assert!(
            matches!(refused, Err(Error::Superseded(attempt_id)) if attempt_id == stale),
            "{refused:?}"
        );
    }
    assert_eq!(registered(broker).await?, [parent]);
    assert_eq!(broker.summary().await?.stale_writes, 2);
    assert_eq!(
        kinds(broker, tid).await?.last(),
        Some(&TaskEventKind::StaleWrite)
    );
    Ok(())
}
