//! Tasks that are counted, listed and removed together.

use std::{collections::BTreeMap, time::Duration};

use raddle_model::{HumanDuration, TaskSpec, TaskState, Tid};

use super::{Fixture, Handle, support::*};
use crate::{ChainRequest, Error, Result, SummaryDetail, TaskFilter};

fn of_batch(batch: &str, name: &str) -> TaskSpec {
    TaskSpec {
        batch: Some(batch.into()),
        ..spec(name)
    }
}

async fn states(broker: &Handle, batch: &str) -> Result<BTreeMap<TaskState, u64>> {
    let detail = SummaryDetail {
        batch: Some(batch.into()),
        ..SummaryDetail::default()
    };
    Ok(broker.summarize(detail).await?.states)
}

async fn tids(broker: &Handle, filter: TaskFilter) -> Result<Vec<Tid>> {
    Ok(broker
        .tasks(filter)
        .await?
        .iter()
        .map(|task| task.tid)
        .collect())
}

fn in_batch(batch: &str) -> TaskFilter {
    TaskFilter {
        batch: Some(batch.into()),
        ..TaskFilter::default()
    }
}

/// By state, and the newest first.
pub async fn tasks_of_a_batch_are_counted_and_listed(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    let later = TaskSpec {
        delay: Some(HumanDuration::secs(600)),
        ..of_batch("b", "later")
    };
    let specs = ["1", "2", "3", "4"]
        .map(|name| of_batch("b", name))
        .into_iter()
        .chain([later]);
    let mut all = submit_all(broker, specs.collect()).await?;
    // Names that begin alike are two batches, and most tasks are in none.
    let other = submit_all(
        broker,
        vec![
            of_batch("b-2", "other"),
            spec("alone"),
            of_batch("bb", "other"),
        ],
    )
    .await?;
    assert_eq!(
        states(broker, "b").await?,
        BTreeMap::from([(TaskState::Created, 5)])
    );
    for exit in [success(), failure()] {
        let attempt_id = begin(broker, owner).await?;
        end(broker, attempt_id, exit).await?;
    }
    begin(broker, owner).await?;
    take(broker, owner).await?;
    let expected = [
        TaskState::Created,
        TaskState::Spawning,
        TaskState::Running,
        TaskState::Completed,
        TaskState::Failed,
    ];
    let other_handle = store.reopen().await;
    assert_eq!(
        states(&other_handle, "b").await?,
        expected.into_iter().map(|state| (state, 1)).collect()
    );
    assert_eq!(states(broker, "absent").await?, BTreeMap::new());

    all.reverse();
    assert_eq!(tids(broker, in_batch("b")).await?, all);
    assert_eq!(tids(broker, in_batch("b-2")).await?, other[..1]);
    assert_eq!(
        tids(
            broker,
            TaskFilter {
                limit: 2,
                before: Some(all[0]),
                ..in_batch("b")
            }
        )
        .await?,
        all[1..3]
    );
    assert_eq!(
        tids(
            broker,
            TaskFilter {
                states: vec![TaskState::Failed],
                ..in_batch("b")
            }
        )
        .await?,
        all[3..4]
    );
    assert_eq!(
        tids(
            broker,
            TaskFilter {
                dead: true,
                ..in_batch("b")
            }
        )
        .await?,
        all[3..4]
    );
    let active = vec![TaskState::Spawning, TaskState::Running];
    assert_eq!(
        tids(
            broker,
            TaskFilter {
                states: active.clone(),
                ..in_batch("b")
            }
        )
        .await?,
        all[1..3]
    );
    assert_eq!(
        tids(
            broker,
            TaskFilter {
                states: active,
                ..in_batch("b-2")
            }
        )
        .await?,
        []
    );
    assert_eq!(
        tids(
            broker,
            TaskFilter {
                among: Some(vec![all[0], other[0]]),
                ..in_batch("b")
            }
        )
        .await?,
        all[..1]
    );

    let batches = broker
        .summarize(SummaryDetail {
            batches: true,
            ..SummaryDetail::default()
        })
        .await?
        .batches;
    let counted: Vec<(&str, u64)> = batches
        .iter()
        .map(|(name, batch)| (name.as_str(), batch.tasks))
        .collect();
    assert_eq!(counted, [("b", 5), ("b-2", 1), ("bb", 1)]);
    assert_eq!(
        batches["b"].since.as_nanosecond(),
        i128::from(all[4].unix_nanos())
    );
    Ok(())
}

/// Otherwise a batch would count the failure beside the success.
pub async fn a_task_that_is_submitted_again_takes_the_place_of_the_old_one(
    store: &dyn Fixture,
) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    let old = submit(broker, of_batch("b", "task")).await?;
    let attempt_id = begin(broker, owner).await?;
    end(broker, attempt_id, failure()).await?;
    let new = broker.resubmit(old, true).await?;
    assert_eq!(
        states(broker, "b").await?,
        BTreeMap::from([(TaskState::Created, 1)])
    );
    assert_eq!(tids(broker, in_batch("b")).await?, [new]);
    assert_eq!(broker.delete(vec![old]).await?, 1);
    assert_eq!(tids(broker, in_batch("b")).await?, [new]);
    Ok(())
}

/// And not before: until then it is no task.
pub async fn a_chained_task_joins_its_batch_when_it_is_submitted(
    store: &dyn Fixture,
) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    submit(broker, spec("first")).await?;
    let attempt_id = begin(broker, owner).await?;
    broker
        .chain(ChainRequest {
            attempt_id,
            tasks: vec![of_batch("b", "next")],
            offset: None,
        })
        .await?;
    assert_eq!(states(broker, "b").await?, BTreeMap::new());
    end(broker, attempt_id, success()).await?;
    assert_eq!(
        states(broker, "b").await?,
        BTreeMap::from([(TaskState::Created, 1)])
    );
    Ok(())
}

/// Others are left alone.
pub async fn finished_tasks_are_deleted_with_all_that_is_known_of_them(
    store: &dyn Fixture,
) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    // A name in an argument is no name of a batch.
    let odd = TaskSpec {
        metadata: [("batch".to_owned(), "x".into())].into_iter().collect(),
        ..of_batch("b", "odd")
    };
    let all = submit_all(
        broker,
        vec![
            of_batch("b", "good"),
            of_batch("b", "bad"),
            odd,
            spec("plain"),
        ],
    )
    .await?;
    for exit in [success(), failure(), success(), success()] {
        let attempt_id = begin(broker, owner).await?;
        end(broker, attempt_id, exit).await?;
    }
    let running = submit(broker, of_batch("b", "runs")).await?;
    begin(broker, owner).await?;
    let absent = Tid::from_u64(all[0].as_u64() - 1).expect("an id before another is one");
    assert_eq!(
        broker.delete(vec![all[0], all[1], running, absent]).await?,
        2
    );
    assert_eq!(tids(broker, in_batch("b")).await?, [running, all[2]]);
    assert!(broker.task(all[0]).await?.is_none());
    assert_eq!(
        tids(
            broker,
            TaskFilter {
                dead: true,
                ..TaskFilter::default()
            }
        )
        .await?,
        []
    );
    assert!(
        matches!(broker.resubmit(all[1], false).await, Err(Error::NotFound(tid)) if tid == all[1])
    );
    let summary = broker.summary().await?;
    assert_eq!(
        summary.states,
        BTreeMap::from([(TaskState::Running, 1), (TaskState::Completed, 2)])
    );
    assert_eq!(broker.delete(all.clone()).await?, 2);
    assert_eq!(broker.delete(all).await?, 0);
    Ok(())
}

/// Whether that expires or is deleted.
pub async fn a_batch_is_gone_with_the_last_of_its_records(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    let brief = TaskSpec {
        result_ttl: Some(HumanDuration::millis(1)),
        ..of_batch("b", "brief")
    };
    let kept = submit_all(broker, vec![brief, of_batch("b", "kept")]).await?[1];
    for _ in 0..2 {
        let attempt_id = begin(broker, owner).await?;
        end(broker, attempt_id, success()).await?;
    }
    let batches = || async {
        broker
            .summarize(SummaryDetail {
                batches: true,
                ..SummaryDetail::default()
            })
            .await
    };
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(broker.purge().await?, 1);
    assert_eq!(batches().await?.batches["b"].tasks, 1);
    assert_eq!(broker.delete(vec![kept]).await?, 1);
    assert!(batches().await?.batches.is_empty());
    assert_eq!(states(broker, "b").await?, BTreeMap::new());
    Ok(())
}
