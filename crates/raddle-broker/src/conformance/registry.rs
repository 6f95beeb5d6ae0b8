//! The workers that live on a broker.

use raddle_model::{
    ControlCommand, ControlMessage, ExitStatus, QueueName, Target, TaskEventKind, TaskState, Tid,
    queue_name::TaskQueue,
    worker::{Heartbeat, PoolWorkerInfo, WorkerInfo, WorkerStatus},
};

use super::{Fixture, support::*};
use crate::{
    ControlDelivery, DeliveryOutcome, Error, LeaseStatus, Result, TaskFilter, WaitingRequest,
};

/// With an id, a state and events.
pub async fn a_worker_is_a_task(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = broker
        .register(
            WorkerInfo {
                pid: 4711,
                ..info("clotho")
            },
            TTL,
        )
        .await?;
    let task = view(broker, owner).await?;
    assert_eq!(
        (task.state, task.attempt, task.pid),
        (TaskState::Running, 1, Some(4711))
    );
    assert_eq!(task.spec.target, Target::Service("resident".into()));
    assert_eq!(task.spec.display_name(), "clotho");
    assert_eq!(
        kinds(broker, owner).await?,
        [TaskEventKind::Created, TaskEventKind::Running]
    );
    assert!(
        broker.summary().await?.states.is_empty(),
        "services are not counted"
    );
    Ok(())
}

/// Any handle sees it.
pub async fn a_registry_entry_shows_the_worker_info(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let told = WorkerInfo {
        capabilities: caps("cpu,gpu"),
        queues: vec!["a".into(), "b".into()],
        ..info("clotho")
    };
    let owner = broker.register(told.clone(), TTL).await?;
    let second = worker(broker).await?;
    let entries = store.reopen().await.workers().await?;
    assert_eq!(
        entries.iter().map(|entry| entry.tid).collect::<Vec<_>>(),
        [owner, second]
    );
    assert_eq!(entries[0].info, told);
    assert_eq!(
        (entries[0].status, entries[0].load, entries[0].spawned_count),
        (WorkerStatus::Active, 0.0, 0)
    );
    assert_eq!(
        entries[0].queue,
        Some(QueueName::Task(owner, TaskQueue::Inbox).to_string())
    );
    Ok(())
}

/// The activity of the worker.
pub async fn a_heartbeat_shows_in_the_registry_entry(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    let mut renewer = broker.lease_renewer(owner, TTL);
    for status in [
        WorkerStatus::Draining,
        WorkerStatus::Active,
        WorkerStatus::Paused,
    ] {
        renewer.renew(Heartbeat {
            status,
            busy: 3,
            spawned_count: 17,
        })?;
        let entry = &broker.workers().await?[0];
        assert_eq!(
            (entry.status, entry.load, entry.spawned_count),
            (status, 0.75, 17)
        );
    }
    Ok(())
}

/// Its task is over, and its entry is gone.
pub async fn a_worker_that_leaves_has_completed(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    broker.deregister(owner, None).await?;
    assert!(broker.workers().await?.is_empty());
    assert_eq!(view(broker, owner).await?.state, TaskState::Completed);
    assert_eq!(
        kinds(broker, owner).await?.last(),
        Some(&TaskEventKind::Completed)
    );
    assert_eq!(
        broker
            .lease_renewer(owner, TTL)
            .renew(Heartbeat::default())?,
        LeaseStatus::Expired
    );
    Ok(())
}

/// It says why.
pub async fn a_worker_that_leaves_badly_has_failed(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    broker
        .deregister(owner, Some("no runner could be started".into()))
        .await?;
    let task = view(broker, owner).await?;
    assert_eq!((task.state, task.dead), (TaskState::Failed, false));
    let message = "no runner could be started".to_string();
    assert_eq!(
        task.report.map(|report| report.exit),
        Some(ExitStatus::WorkerLost {
            message: message.clone()
        })
    );
    assert_eq!(last_detail(broker, owner).await?, Some(message));
    Ok(())
}

/// Leaving in good order is no loss, whether an attempt had begun or not.
pub async fn requeues_tasks_of_a_leaving_worker_uncharged(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    let tids = submit_all(broker, vec![spec("begun"), spec("claimed")]).await?;
    begin(broker, owner).await?;
    take(broker, owner).await?;
    broker.deregister(owner, None).await?;
    for tid in tids {
        let task = view(broker, tid).await?;
        assert_eq!(
            (task.state, task.attempt, task.failures, task.losses),
            (TaskState::Created, 1, 0, 0)
        );
        assert_eq!(
            kinds(broker, tid).await?.last(),
            Some(&TaskEventKind::Released)
        );
    }
    Ok(())
}

/// Nor does it matter if others were faster.
pub async fn leaving_twice_is_leaving_once(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    broker.deregister(owner, None).await?;
    broker.deregister(owner, Some("again".into())).await?;
    broker
        .deregister(
            Tid::from_u64(1_500_000_000_000_000_000).expect("in the range of ids"),
            None,
        )
        .await?;
    assert_eq!(view(broker, owner).await?.state, TaskState::Completed);
    assert_eq!(kinds(broker, owner).await?.len(), 3);
    Ok(())
}

/// Even before another worker has reclaimed its tasks.
pub async fn a_worker_without_a_lease_is_not_shown(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = mortal(broker).await?;
    let other = worker(broker).await?;
    assert_eq!(broker.workers().await?.len(), 2);
    outlive(broker, owner).await?;
    let alive: Vec<_> = broker
        .workers()
        .await?
        .iter()
        .map(|entry| entry.tid)
        .collect();
    assert_eq!(alive, [other]);
    Ok(())
}

/// It needs no runtime, and does not care whether one is busy.
pub async fn renews_leases_on_a_plain_thread(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    mortal(broker).await?;
    pass_lease().await;
    assert_eq!(
        broker.workers().await?.len(),
        1,
        "the beat's lease is the long one"
    );
    Ok(())
}

/// Always passed on: a service obeys by itself.
pub async fn commands_reach_a_worker(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    for word in [ControlCommand::Pause, ControlCommand::Stop] {
        assert_eq!(
            broker.control(owner, ControlMessage::new(word)).await?,
            DeliveryOutcome::Sent
        );
    }
    let words = broker.recv_commands(owner, AT_ONCE).await?;
    let expected = ["PAUSE", "STOP"].map(|body| ControlDelivery {
        tid: owner,
        body: body.into(),
    });
    assert_eq!(words, expected);
    assert_eq!(view(broker, owner).await?.state, TaskState::Running);
    assert!(broker.tasks(TaskFilter::default()).await?.is_empty());
    Ok(())
}

/// The registry info of a pool worker.
fn callee() -> WorkerInfo {
    let callee = PoolWorkerInfo {
        namespace: "math".into(),
        uid: "01890a5d-ac96-774b-bcce-b302099a8057".into(),
        address: "10.0.0.7:7070".into(),
        version: "1.4.0".into(),
        tags: ["gpu".into()].into(),
        extra: [("zone".into(), "b".into())].into(),
        secure: true,
        encodings: ["json".into()].into(),
        routines: ["add".into(), "sub".into()].into(),
    };
    WorkerInfo {
        kind: "pool".into(),
        queues: Vec::new(),
        concurrency: 0,
        callee: Some(Box::new(callee)),
        ..info("math")
    }
}

/// Any handle reads it, while it is renewed and until it is taken out.
pub async fn stores_what_a_worker_announces_to_callers(store: &dyn Fixture) -> Result<()> {
    let (broker, other) = (store.broker(), store.reopen().await);
    let owner = broker.register_ephemeral(callee(), TTL).await?;
    let entries = other.workers().await?;
    assert_eq!(
        entries
            .iter()
            .map(|entry| (entry.tid, &entry.info))
            .collect::<Vec<_>>(),
        [(owner, &callee())]
    );
    assert!(matches!(
        broker
            .lease_renewer(owner, TTL)
            .renew(Heartbeat::default())?,
        LeaseStatus::Alive(_)
    ));
    assert_eq!(
        other.workers().await?[0].info,
        callee(),
        "a beat changes nothing of it"
    );
    broker.deregister(owner, None).await?;
    assert!(other.workers().await?.is_empty());
    Ok(())
}

/// It is gone with its lease, and one that came late learns of it.
pub async fn a_worker_that_takes_calls_is_gone_with_its_lease(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = broker.register_ephemeral(callee(), SHORT_TTL).await?;
    pass_lease().await;
    assert!(broker.workers().await?.is_empty());
    assert_eq!(
        broker
            .lease_renewer(owner, TTL)
            .renew(Heartbeat::default())?,
        LeaseStatus::Expired
    );
    broker.reclaim().await?;
    broker.deregister(owner, None).await?;
    assert!(broker.workers().await?.is_empty());
    Ok(())
}

/// Its registration changes nothing for tasks and for other workers.
pub async fn a_worker_that_takes_calls_takes_no_tasks(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = broker.register_ephemeral(callee(), TTL).await?;
    assert_eq!(broker.task(owner).await?, None, "it is no task");
    assert!(
        matches!(broker.control(owner, ControlMessage::new(ControlCommand::Stop)).await, Err(Error::NotFound(tid)) if tid == owner)
    );
    let tid = submit(broker, spec("task")).await?;
    assert!(!broker.workers().await?[0].would_take(&spec("task")));
    let waiting = WaitingRequest {
        caps: caps(""),
        queues: vec!["default".into()],
        before: None,
        max: 9,
        wait: AT_ONCE,
    };
    assert_eq!(broker.count_waiting(waiting).await?, 1);
    let resident = worker(broker).await?;
    assert_eq!(take(broker, resident).await?.tid, tid);
    Ok(())
}
