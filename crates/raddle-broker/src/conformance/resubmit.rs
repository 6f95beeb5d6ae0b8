//! A finished task once more.

use raddle_model::{HumanDuration, TaskSpec, TaskState};

use super::{Fixture, support::*};
use crate::{Error, NewTask, Result, TaskFilter};

/// The same spec but for its time, and it says what it is.
pub async fn a_finished_task_runs_again_as_a_new_one(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    let parent = submit(
        broker,
        TaskSpec {
            queue: "other".into(),
            ..spec("parent")
        },
    )
    .await?;
    let given = TaskSpec {
        delay: Some(HumanDuration::millis(20)),
        priority: 8,
        ..spec("task")
    };
    let old = broker
        .submit(vec![NewTask {
            spec: given.clone(),
            parent: Some(parent),
        }])
        .await?[0]
        .tid();
    end(broker, begin(broker, owner).await?, success()).await?;
    let new = broker.resubmit(old, false).await?;
    assert!(new > old);
    let task = view(broker, new).await?;
    assert_eq!(
        (task.state, task.attempt, task.parent, task.run_at),
        (TaskState::Created, 0, Some(parent), None)
    );
    assert_eq!(task.spec.metadata["retry_of"], old.to_string());
    let expected = TaskSpec {
        delay: None,
        metadata: task.spec.metadata.clone(),
        ..given
    };
    assert_eq!(task.spec, expected);
    assert_eq!(view(broker, old).await?.state, TaskState::Completed);
    assert_eq!(take(broker, owner).await?.tid, new);
    Ok(())
}

/// It would run twice.
pub async fn an_unfinished_task_is_not_submitted_again(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    let tid = submit(broker, spec("task")).await?;
    for state in [TaskState::Created, TaskState::Spawning] {
        let refused = broker.resubmit(tid, false).await;
        assert!(
            matches!(refused, Err(Error::Unfinished(t, s)) if t == tid && s == state),
            "{refused:?}"
        );
        if state == TaskState::Created {
            take(broker, owner).await?;
        }
    }
    let unknown =
        raddle_model::Tid::from_u64(1_500_000_000_000_000_000).expect("in the range of ids");
    assert!(matches!(
        broker.resubmit(unknown, false).await,
        Err(Error::NotFound(_))
    ));
    assert_eq!(broker.tasks(TaskFilter::default()).await?.len(), 1);
    Ok(())
}

/// The old one has been seen to.
pub async fn a_dead_task_leaves_the_dead_letter_queue(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    let old = submit(broker, spec("task")).await?;
    end(broker, begin(broker, owner).await?, failure()).await?;
    assert!(view(broker, old).await?.dead);
    broker.resubmit(old, false).await?;
    let task = view(broker, old).await?;
    assert_eq!((task.dead, task.state), (false, TaskState::Failed));
    assert_eq!(broker.summary().await?.dead, 0);
    Ok(())
}

/// However many see to it at once: each has seen that it is dead.
pub async fn a_dead_letter_is_submitted_again_once(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    for given in [
        spec("task"),
        TaskSpec {
            unique_key: Some("k".into()),
            lifetime: Some(HumanDuration::secs(60)),
            ..spec("keyed")
        },
    ] {
        let old = submit(broker, given).await?;
        end(broker, begin(broker, owner).await?, failure()).await?;
        let mut tries = Vec::new();
        for _ in 0..8 {
            let another = store.reopen().await;
            tries.push(tokio::spawn(
                async move { another.resubmit(old, true).await },
            ));
        }
        let mut made = Vec::new();
        for attempt in tries {
            match attempt.await.expect("it does not panic") {
                Ok(new) => made.push(new),
                Err(Error::NotDead(tid)) => assert_eq!(tid, old),
                Err(error) => return Err(error),
            }
        }
        assert_eq!(made.len(), 1);
        let refused = broker.resubmit(old, true).await;
        assert!(
            matches!(refused, Err(Error::NotDead(tid)) if tid == old),
            "{refused:?}"
        );
        end(broker, begin(broker, owner).await?, success()).await?;
        let done = broker.resubmit(made[0], true).await;
        assert!(
            matches!(done, Err(Error::NotDead(tid)) if tid == made[0]),
            "{done:?}"
        );
        assert!(
            broker.resubmit(old, false).await? > made[0],
            "a request by id is for any task"
        );
        end(broker, begin(broker, owner).await?, success()).await?;
    }
    Ok(())
}

/// Otherwise the caller would believe that it runs again, and no record of it would be left.
pub async fn a_dead_task_whose_key_is_taken_stays_dead(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    let keyed = || TaskSpec {
        unique_key: Some("k".into()),
        ..spec("task")
    };
    let mut dead = Vec::new();
    for _ in 0..2 {
        dead.push(submit(broker, keyed()).await?);
        end(broker, begin(broker, owner).await?, failure()).await?;
    }
    let holder = broker.resubmit(dead[0], false).await?;
    let refused = broker.resubmit(dead[1], false).await;
    assert!(
        matches!(refused, Err(Error::KeyTaken { tid, holder: h }) if tid == dead[1] && h == holder),
        "{refused:?}"
    );
    assert!(view(broker, dead[1]).await?.dead);
    assert_eq!(broker.summary().await?.dead, 1);
    assert_eq!(
        broker
            .tasks(TaskFilter {
                dead: true,
                ..TaskFilter::default()
            })
            .await?
            .len(),
        1
    );
    end(broker, begin(broker, owner).await?, success()).await?;
    broker.resubmit(dead[1], false).await?;
    assert_eq!(broker.summary().await?.dead, 0);
    Ok(())
}
