//! Tasks that no worker claims in time.

use std::time::Duration;

use jiff::Timestamp;
use raddle_model::{
    ExitStatus, HumanDuration, TaskEventKind, TaskSpec, TaskState, Tid, worker::WorkerInfo,
};

use super::{Fixture, Handle, support::*};
use crate::{ClaimRequest, CompletionOutcome, DeliveryOutcome, NewTask, Result, SubmitAndClaim};

/// How long what is to expire in its case may wait.
const LIFETIME: Duration = Duration::from_millis(80);
/// How long what is to live through its case may.
const LONG: Duration = Duration::from_secs(120);

fn short_lived(name: &str) -> TaskSpec {
    TaskSpec {
        lifetime: Some(HumanDuration(LIFETIME)),
        ..spec(name)
    }
}

async fn outlive() {
    tokio::time::sleep(LIFETIME + Duration::from_millis(20)).await;
}

/// Checks that a task has ended without having been run.
async fn assert_expired(broker: &Handle, tid: Tid) -> Result<()> {
    let task = view(broker, tid).await?;
    let report = task.report.expect("it is over");
    assert_eq!(
        (task.state, report.exit, report.started_at),
        (TaskState::Cancelled, ExitStatus::Expired, None)
    );
    assert!(!task.dead);
    let kinds = kinds(broker, tid).await?;
    assert!(!kinds.contains(&TaskEventKind::Running), "{kinds:?}");
    assert_eq!(kinds.iter().filter(|kind| kind.is_terminal()).count(), 1);
    assert_eq!(
        last_detail(broker, tid).await?.as_deref(),
        Some("expired before a worker took it")
    );
    Ok(())
}

/// Ends all expired tasks, as schedulers do.
async fn sweep(broker: &Handle) -> Result<u64> {
    let mut ended = 0;
    loop {
        match broker.due_items(AT_ONCE).await?.expired {
            0 => return Ok(ended),
            expired => ended += expired,
        }
    }
}

/// A claim does not depend on a scheduler that ends expired tasks first.
pub async fn does_not_hand_out_expired_tasks(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    let tid = submit(broker, short_lived("task")).await?;
    outlive().await;
    assert_eq!(claim(broker, owner, 10).await?, []);
    assert_expired(broker, tid).await?;
    assert_eq!(sweep(broker).await?, 0, "it has been ended");
    assert_expired(broker, tid).await
}

/// The scheduler that waits for due items ends it.
pub async fn expires_tasks_without_a_claim(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let (tid, other) = (
        submit(broker, short_lived("task")).await?,
        submit(broker, spec("other")).await?,
    );
    let due_items = broker.due_items(SOON).await?;
    assert_eq!((due_items.expired, due_items.due.len()), (1, 0));
    assert_expired(broker, tid).await?;
    assert_eq!(view(broker, other).await?.state, TaskState::Created);
    assert_eq!(
        broker.summary().await?.ready,
        [("default".to_owned(), 1)].into()
    );
    Ok(())
}

/// Also one that is past when the task comes.
pub async fn a_time_is_as_good_as_a_lifetime(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let until = |at: Timestamp| TaskSpec {
        run_before: Some(at),
        ..spec("task")
    };
    let now = Timestamp::now();
    let gone = submit(broker, until(now - Duration::from_secs(1))).await?;
    let fresh = submit(broker, until(now + LONG)).await?;
    assert_eq!(sweep(broker).await?, 1);
    assert_expired(broker, gone).await?;
    let owner = worker(broker).await?;
    assert_eq!(take(broker, owner).await?.tid, fresh);
    Ok(())
}

/// Wherever it waits.
pub async fn paused_and_delayed_tasks_expire(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let delayed = TaskSpec {
        delay: Some(HumanDuration(LIFETIME / 2)),
        ..short_lived("delayed")
    };
    let (held, delayed) = (
        submit(broker, short_lived("held")).await?,
        submit(broker, delayed).await?,
    );
    let paused = broker
        .control(held, "pause".parse().expect("a word"))
        .await?;
    assert_eq!(paused, DeliveryOutcome::Applied(TaskState::Created));
    outlive().await;
    assert_eq!(sweep(broker).await?, 2);
    assert_expired(broker, held).await?;
    assert_expired(broker, delayed).await?;
    let summary = broker.summary().await?;
    assert_eq!(
        (summary.delayed, summary.paused, summary.ready.len()),
        (0, 0, 0)
    );
    Ok(())
}

/// A lifetime is for waiting.
pub async fn a_task_claimed_in_time_does_not_expire(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    let tid = submit(
        broker,
        TaskSpec {
            lifetime: Some(HumanDuration::secs(1)),
            ..spec("task")
        },
    )
    .await?;
    let attempt_id = begin(broker, owner).await?;
    tokio::time::sleep(Duration::from_millis(1050)).await;
    assert_eq!(sweep(broker).await?, 0);
    assert_eq!(view(broker, tid).await?.state, TaskState::Running);
    assert_eq!(
        end(broker, attempt_id, success()).await?,
        CompletionOutcome::Finished(TaskState::Completed)
    );
    Ok(())
}

/// It has been run, which is what it was to be.
pub async fn a_failure_in_time_is_retried_after_the_expiry(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    let tid = submit(
        broker,
        TaskSpec {
            lifetime: Some(HumanDuration::secs(1)),
            ..retrying(2, HumanDuration::millis(1100))
        },
    )
    .await?;
    let attempt_id = begin(broker, owner).await?;
    assert!(matches!(
        end(broker, attempt_id, failure()).await?,
        CompletionOutcome::Retry(_)
    ));
    let again = begin(broker, owner).await?;
    assert_eq!((again.tid, again.attempt), (tid, 2));
    assert_eq!(sweep(broker).await?, 0);
    assert_eq!(
        end(broker, again, success()).await?,
        CompletionOutcome::Finished(TaskState::Completed)
    );
    Ok(())
}

/// A worker held it when it expired.
pub async fn a_task_released_unrun_expires(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    let tid = submit(
        broker,
        TaskSpec {
            lifetime: Some(HumanDuration::secs(1)),
            ..spec("task")
        },
    )
    .await?;
    let attempt_id = take(broker, owner).await?;
    tokio::time::sleep(Duration::from_millis(1050)).await;
    assert_eq!(sweep(broker).await?, 0, "a worker has it");
    release(broker, attempt_id).await?;
    assert_eq!(claim(broker, owner, 10).await?, []);
    assert_expired(broker, tid).await
}

/// Not even by who is there for it alone.
pub async fn one_that_has_expired_is_not_claimed_by_its_submitter(
    store: &dyn Fixture,
) -> Result<()> {
    let broker = store.broker();
    let worker = WorkerInfo {
        queues: Vec::new(),
        ..info("own")
    };
    let run_before = Some(Timestamp::now() - Duration::from_secs(1));
    let task = NewTask::new(TaskSpec {
        run_before,
        ..spec("task")
    });
    let own = broker
        .submit_and_claim(SubmitAndClaim {
            task,
            worker,
            lease: TTL,
        })
        .await?;
    assert_eq!((own.claim, own.worker), (None, None));
    assert!(
        broker.workers().await?.is_empty(),
        "its worker has gone with it"
    );
    assert_expired(broker, own.submitted.tid()).await
}

/// However many stand in front.
pub async fn those_behind_the_expired_are_given_out(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    let gone = submit_all(broker, vec![short_lived("gone"); 20]).await?;
    outlive().await;
    let fresh = submit(broker, spec("fresh")).await?;
    let claims = broker
        .claim(ClaimRequest {
            max: 2,
            wait: SOON,
            ..request(owner)
        })
        .await?;
    assert_eq!(
        claims
            .iter()
            .map(|claim| claim.attempt_id.tid)
            .collect::<Vec<_>>(),
        [fresh]
    );
    for tid in gone {
        assert_expired(broker, tid).await?;
    }
    Ok(())
}

/// An expired task is over.
pub async fn a_key_is_free_once_its_task_has_expired(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let keyed = || TaskSpec {
        unique_key: Some("key".into()),
        ..short_lived("keyed")
    };
    let first = submit(broker, keyed()).await?;
    assert_eq!(submit(broker, keyed()).await?, first);
    outlive().await;
    sweep(broker).await?;
    let second = submit(broker, keyed()).await?;
    assert_ne!(second, first);
    assert_expired(broker, first).await
}

/// Each once, however many look.
pub async fn many_expire_in_turn(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    submit_all(broker, vec![short_lived("task"); 1000]).await?;
    outlive().await;
    let second = store.reopen().await;
    let (a, b) = tokio::join!(sweep(broker), sweep(&second));
    assert_eq!(a? + b? + sweep(broker).await?, 1000);
    let summary = broker.summary().await?;
    assert_eq!(summary.states, [(TaskState::Cancelled, 1000)].into());
    assert!(summary.ready.is_empty());
    Ok(())
}
