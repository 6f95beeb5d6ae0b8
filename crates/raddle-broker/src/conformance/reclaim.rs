//! Taking back what belongs to workers that are gone.

use std::time::{Duration, Instant};

use raddle_model::{
    ControlCommand, ControlMessage, ExitStatus, TaskEventKind, TaskSpec, TaskState,
    next_step::{LOSSES_ALLOWED, UNCHARGED_ATTEMPTS},
    spec::ReservedPolicy,
    worker::Heartbeat,
};

use super::{Fixture, support::*};
use crate::{
    AttemptId, ChainRequest, CompletionOutcome, ControlDelivery, LeaseStatus, Reclaimed, Release,
    Result,
};

/// Its worker cannot have died of it.
pub async fn requeues_unstarted_tasks_of_a_lost_worker_uncharged(
    store: &dyn Fixture,
) -> Result<()> {
    let broker = store.broker();
    let owner = mortal(broker).await?;
    let tid = submit(broker, spec("task")).await?;
    let attempt_id = take(broker, owner).await?;
    assert!(broker.reclaim().await?.is_empty(), "the lease holds");
    outlive(broker, owner).await?;
    let taken = store.reopen().await.reclaim().await?;
    assert!(
        matches!(taken[..], [Reclaimed { attempt_id: f, outcome: CompletionOutcome::Retry(_) }] if f == attempt_id),
        "{taken:?}"
    );
    let task = view(broker, tid).await?;
    assert_eq!(
        (task.state, task.attempt, task.losses),
        (TaskState::Created, 1, 0)
    );
    assert_eq!(
        kinds(broker, tid).await?.last(),
        Some(&TaskEventKind::Reclaimed)
    );
    let other = worker(broker).await?;
    assert_eq!(
        take(broker, other).await?,
        AttemptId {
            tid,
            attempt: 2,
            owner: other
        }
    );
    Ok(())
}

/// It may have been the cause.
pub async fn counts_started_tasks_of_a_lost_worker_as_lost(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = mortal(broker).await?;
    let tid = submit(broker, spec("task")).await?;
    begin(broker, owner).await?;
    outlive(broker, owner).await?;
    assert_eq!(broker.reclaim().await?.len(), 1);
    let task = view(broker, tid).await?;
    assert_eq!(
        (task.state, task.attempt, task.failures, task.losses),
        (TaskState::Created, 1, 0, 1)
    );
    assert!(task.run_at.is_none(), "a loss costs no pause");
    let events = broker.events(Some(0), Some(tid), 10, AT_ONCE).await?;
    let last = events.last().expect("there are events");
    assert_eq!(
        (last.event, last.attempt, last.worker),
        (TaskEventKind::Reclaimed, 1, Some(owner))
    );
    assert_eq!(last.detail, Some(format!("worker {owner} is gone")));
    Ok(())
}

/// After as many losses as are allowed, with the reason.
pub async fn a_task_that_kills_its_workers_is_dead_lettered(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let tid = submit(broker, spec("poison")).await?;
    let mut owner = None;
    for attempt in 1..=LOSSES_ALLOWED {
        let victim = mortal(broker).await?;
        owner = Some(victim);
        assert_eq!(
            begin(broker, victim).await?,
            AttemptId {
                tid,
                attempt,
                owner: victim
            }
        );
        outlive(broker, victim).await?;
        let taken = broker.reclaim().await?;
        assert_eq!(
            matches!(
                taken[0].outcome,
                CompletionOutcome::Finished(TaskState::Failed)
            ),
            attempt == LOSSES_ALLOWED,
            "{taken:?}"
        );
    }
    let task = view(broker, tid).await?;
    assert_eq!(
        (task.state, task.dead, task.losses),
        (TaskState::Failed, true, LOSSES_ALLOWED)
    );
    let message = format!("worker {} is gone", owner.expect("there were victims"));
    assert_eq!(
        task.report.map(|report| report.exit),
        Some(ExitStatus::WorkerLost {
            message: message.clone()
        })
    );
    assert_eq!(
        kinds(broker, tid).await?.last(),
        Some(&TaskEventKind::Failed)
    );
    assert_eq!(last_detail(broker, tid).await?, Some(message));
    Ok(())
}

/// One that takes its worker along before that can say that it runs looks innocent each time.
pub async fn a_task_that_never_gets_to_begin_is_not_believed_for_ever(
    store: &dyn Fixture,
) -> Result<()> {
    let broker = store.broker();
    let tid = submit(broker, spec("sudden")).await?;
    let owner = worker(broker).await?;
    for _ in 0..UNCHARGED_ATTEMPTS {
        let attempt_id = take(broker, owner).await?;
        broker
            .release(vec![Release {
                attempt_id,
                reason: "to spend attempts".into(),
            }])
            .await?;
    }
    for losses in 1..=LOSSES_ALLOWED {
        let victim = mortal(broker).await?;
        take(broker, victim).await?;
        outlive(broker, victim).await?;
        broker.reclaim().await?;
        assert_eq!(view(broker, tid).await?.losses, losses);
    }
    assert_eq!(view(broker, tid).await?.state, TaskState::Failed);
    Ok(())
}

/// Workers are tasks.
pub async fn the_worker_itself_has_failed(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = mortal(broker).await?;
    outlive(broker, owner).await?;
    assert!(broker.reclaim().await?.is_empty(), "it had nothing");
    assert!(broker.workers().await?.is_empty());
    let task = view(broker, owner).await?;
    assert_eq!((task.state, task.dead), (TaskState::Failed, false));
    let exit = task.report.map(|report| report.exit);
    assert_eq!(
        exit,
        Some(ExitStatus::WorkerLost {
            message: format!("worker {owner} is gone")
        })
    );
    Ok(())
}

/// However often other workers reclaim, and however long the task runs.
pub async fn a_long_task_on_a_live_worker_is_never_taken(store: &dyn Fixture) -> Result<()> {
    let (broker, other) = (store.broker(), store.reopen().await);
    let ttl = Duration::from_millis(1500);
    let owner = broker.register(info("busy"), ttl).await?;
    let tid = submit(broker, spec("long")).await?;
    let attempt_id = begin(broker, owner).await?;
    let renewer = broker.lease_renewer(owner, ttl);
    let until = Instant::now() + 2 * ttl;
    let beating = std::thread::spawn(move || beat_until(renewer, until));
    while Instant::now() < until {
        assert!(other.reclaim().await?.is_empty());
        tokio::time::sleep(ttl / 8).await;
    }
    beating.join().expect("the worker was never taken for dead");
    assert_eq!(view(broker, tid).await?.losses, 0);
    assert_eq!(
        end(broker, attempt_id, success()).await?,
        CompletionOutcome::Finished(TaskState::Completed)
    );
    Ok(())
}

/// As a worker does it: a beat that did not come through is followed by the next.
fn beat_until(mut renewer: Box<dyn crate::LeaseRenewer>, until: Instant) {
    while Instant::now() < until {
        match renewer.renew(Heartbeat::default()) {
            Ok(status) => assert_eq!(status, LeaseStatus::Alive(Vec::new())),
            Err(error) => assert!(error.is_retryable(), "the engine takes beats: {error:?}"),
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// The attempt that came after it is the one that counts.
pub async fn a_late_finish_is_refused_counted_and_logged(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = mortal(broker).await?;
    let tid = submit(broker, spec("task")).await?;
    let lost = begin(broker, owner).await?;
    outlive(broker, owner).await?;
    broker.reclaim().await?;
    let other = worker(broker).await?;
    let second = begin(broker, other).await?;
    assert_eq!(
        end(broker, lost, failure()).await?,
        CompletionOutcome::Stale
    );
    let summary = broker.summary().await?;
    assert_eq!(
        (
            summary.reclaims,
            summary.stale_writes,
            summary.states[&TaskState::Running]
        ),
        (1, 1, 1)
    );
    assert_eq!(
        kinds(broker, tid).await?.last(),
        Some(&TaskEventKind::StaleWrite)
    );
    assert_eq!(
        end(broker, second, success()).await?,
        CompletionOutcome::Finished(TaskState::Completed)
    );
    Ok(())
}

/// The worker has to stop what it runs; its tasks are back already.
pub async fn a_late_renewal_reports_an_expired_lease(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = mortal(broker).await?;
    let tid = submit(broker, spec("task")).await?;
    begin(broker, owner).await?;
    outlive(broker, owner).await?;
    let mut renewer = broker.lease_renewer(owner, TTL);
    let renewals = std::thread::spawn(move || {
        [
            renewer.renew(Heartbeat::default()),
            renewer.renew(Heartbeat::default()),
        ]
    });
    for status in renewals.join().expect("a late renewal does not panic") {
        assert_eq!(status?, LeaseStatus::Expired);
    }
    let task = view(broker, tid).await?;
    assert_eq!((task.state, task.losses), (TaskState::Created, 1));
    assert!(broker.workers().await?.is_empty());
    assert_eq!(view(broker, owner).await?.state, TaskState::Failed);
    Ok(())
}

/// No other caller is needed for it.
pub async fn a_renewal_reclaims_from_lost_workers(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let (owner, other) = (mortal(broker).await?, worker(broker).await?);
    submit(broker, spec("task")).await?;
    let attempt_id = begin(broker, owner).await?;
    outlive(broker, owner).await?;
    let handle = store.reopen().await;
    let (mut renewer, mut taken) = (handle.lease_renewer(other, TTL), Vec::new());
    // A beat says what is taken as far as it knows by then: one that has no time to wait for it
    // says nothing.
    while taken.is_empty() && view(broker, attempt_id.tid).await?.state != TaskState::Created {
        let heartbeat =
            std::thread::scope(|scope| scope.spawn(|| renewer.renew(Heartbeat::default())).join());
        match heartbeat.expect("a beat does not panic")? {
            LeaseStatus::Alive(more) => taken.extend(more),
            status => panic!("its lease is long: {status:?}"),
        }
    }
    assert!(
        taken.iter().all(|taken| taken.attempt_id == attempt_id),
        "{taken:?}"
    );
    assert_eq!(
        view(broker, attempt_id.tid).await?.state,
        TaskState::Created
    );
    Ok(())
}

/// However many look at once.
pub async fn reclaims_each_task_once(store: &dyn Fixture) -> Result<()> {
    let (broker, other) = (store.broker(), store.reopen().await);
    let owner = mortal(broker).await?;
    let tids = submit_all(broker, vec![spec("task"); 40]).await?;
    let claimed = claim(broker, owner, 40).await?;
    assert_eq!(claimed.len(), 40);
    outlive(broker, owner).await?;
    let (a, b, c) = tokio::join!(broker.reclaim(), other.reclaim(), broker.reclaim());
    let mut taken: Vec<_> = [a?, b?, c?]
        .concat()
        .iter()
        .map(|taken| taken.attempt_id.tid)
        .collect();
    taken.sort();
    assert_eq!(taken, tids);
    Ok(())
}

/// A word that its worker did not live to obey.
pub async fn commands_to_a_lost_attempt_apply_to_the_task(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = mortal(broker).await?;
    let tid = submit(broker, spec("task")).await?;
    begin(broker, owner).await?;
    broker
        .control(tid, ControlMessage::new(ControlCommand::Stop))
        .await?;
    outlive(broker, owner).await?;
    let taken = broker.reclaim().await?;
    assert_eq!(
        taken[0].outcome,
        CompletionOutcome::Finished(TaskState::Cancelled)
    );
    assert_eq!(view(broker, tid).await?.state, TaskState::Cancelled);
    assert!(bodies(broker, &ctrl_in(tid)).await?.is_empty());
    Ok(())
}

/// The worker received the command and was lost before it could apply it. The sender was told that
/// the command was delivered.
pub async fn commands_received_by_a_lost_worker_apply_to_the_task(
    store: &dyn Fixture,
) -> Result<()> {
    let broker = store.broker();
    let stop = ControlMessage::new(ControlCommand::Stop);
    let again = ControlMessage {
        requeue: true,
        ..stop.clone()
    };
    let (kill, pause) = (
        ControlMessage::new(ControlCommand::Kill),
        ControlMessage::new(ControlCommand::Pause),
    );
    let cases = [
        (
            ReservedPolicy::Clear,
            vec![stop.clone()],
            TaskState::Cancelled,
        ),
        (
            ReservedPolicy::Clear,
            vec![stop.clone(), pause.clone()],
            TaskState::Cancelled,
        ),
        (
            ReservedPolicy::Requeue,
            vec![stop.clone(), kill, stop.clone(), again.clone()],
            TaskState::Killed,
        ),
        (ReservedPolicy::Requeue, vec![stop], TaskState::Created),
        (
            ReservedPolicy::Clear,
            vec![again, pause],
            TaskState::Created,
        ),
    ];
    let owner = mortal(broker).await?;
    let mut told = Vec::new();
    for (on_stop, words, end) in cases {
        let tid = submit(
            broker,
            TaskSpec {
                on_stop,
                ..spec("task")
            },
        )
        .await?;
        let attempt_id = begin(broker, owner).await?;
        broker
            .chain(ChainRequest {
                attempt_id,
                tasks: vec![spec("never")],
                offset: None,
            })
            .await?;
        for word in &words {
            broker.control(tid, word.clone()).await?;
            let heard = broker.recv_commands(owner, SOON).await?;
            assert_eq!(
                heard,
                [ControlDelivery {
                    tid,
                    body: word.to_text()
                }]
            );
        }
        broker.mark_paused(attempt_id, false).await?;
        told.push((tid, words, end));
    }
    outlive(broker, owner).await?;
    assert_eq!(store.reopen().await.reclaim().await?.len(), told.len());
    for (tid, words, end) in told {
        let task = view(broker, tid).await?;
        assert_eq!(
            (task.state, task.attempt, task.paused),
            (end, 1, false),
            "{words:?}"
        );
        assert!(
            bodies(broker, &ctrl_out(tid)).await?.is_empty(),
            "{words:?}"
        );
    }
    assert_eq!(
        broker.summary().await?.ready.values().sum::<u64>(),
        2,
        "nothing has followed what did not succeed"
    );
    // The command was for that attempt, and does not stop the next.
    let other = worker(broker).await?;
    let attempt_id = begin(broker, other).await?;
    assert!(matches!(
        release(broker, attempt_id).await?,
        CompletionOutcome::Retry(_)
    ));
    Ok(())
}
