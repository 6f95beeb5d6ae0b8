//! Tasks in.

use std::collections::BTreeSet;

use raddle_model::{HumanDuration, Target, TaskEventKind, TaskSpec, TaskState, spec::Isolation};

use super::{Fixture, support::*};
use crate::{Error, NewTask, Result, Submitted, TaskFilter};

/// A stored task is what was submitted, and waits.
pub async fn stores_tasks_as_given(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let parent = submit(broker, spec("parent")).await?;
    let mut given = TaskSpec {
        requires: caps("gpu,cpu"),
        priority: 7,
        ..spec("Tor & 'Straße' \u{1f9f5}")
    };
    given.args.push(serde_json::json!({ "a": [1, 2.5, null] }));
    given.env.insert("KEY".into(), "value".into());
    (given.isolation, given.isolation_fallback) = (Some(Isolation::Sandbox), true);
    given.network = "example.org:443,[::1]:80".parse().expect("two places");
    let stored = broker
        .submit(vec![NewTask {
            spec: given.clone(),
            parent: Some(parent),
        }])
        .await?;
    let [Submitted::New(tid)] = stored[..] else {
        panic!("one task is stored: {stored:?}")
    };
    let task = view(&store.reopen().await, tid).await?;
    assert_eq!(task.spec, given);
    assert_eq!(
        (task.state, task.attempt, task.failures, task.losses),
        (TaskState::Created, 0, 0, 0)
    );
    assert_eq!(
        (task.parent, task.worker, task.run_at, task.pid),
        (Some(parent), None, None, None)
    );
    assert!(!task.paused && !task.dead && task.report.is_none() && task.finished_at.is_none());
    let events = broker.events(Some(0), Some(tid), 10, AT_ONCE).await?;
    assert_eq!(events.len(), 1);
    assert_eq!(
        (events[0].id, events[0].tid, events[0].event),
        (tid, tid, TaskEventKind::Created)
    );
    Ok(())
}

/// Ids come back in the order of the batch, and increase.
pub async fn a_batch_keeps_its_order(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let names: Vec<String> = (0..100).map(|n| format!("task-{n}")).collect();
    let tids = submit_all(broker, names.iter().map(|name| spec(name)).collect()).await?;
    assert!(tids.is_sorted_by(|a, b| a < b));
    for (tid, name) in tids.iter().zip(&names) {
        assert_eq!(view(broker, *tid).await?.spec.display_name(), name);
    }
    Ok(())
}

/// All or none.
pub async fn one_invalid_task_refuses_the_whole_batch(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let invalid = TaskSpec::command(Vec::<String>::new());
    let batch = [spec("first"), invalid, spec("last")]
        .map(NewTask::new)
        .to_vec();
    let refused = broker.submit(batch).await;
    assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    assert!(broker.tasks(TaskFilter::default()).await?.is_empty());
    assert!(broker.events(Some(0), None, 10, AT_ONCE).await?.is_empty());
    Ok(())
}

/// Nothing in, nothing out.
pub async fn an_empty_batch_is_nothing(store: &dyn Fixture) -> Result<()> {
    assert!(store.broker().submit(Vec::new()).await?.is_empty());
    Ok(())
}

/// They register themselves.
pub async fn refuses_to_submit_a_service(store: &dyn Fixture) -> Result<()> {
    let refused = submit(
        store.broker(),
        TaskSpec::new(Target::Service("resident".into())),
    )
    .await;
    assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    Ok(())
}

/// Every engine has the same bound.
pub async fn a_spec_too_large_to_store_is_refused(store: &dyn Fixture) -> Result<()> {
    let mut large = spec("large");
    large
        .args
        .push("x".repeat(raddle_model::spec::MAX_SPEC_BYTES).into());
    let refused = submit(store.broker(), large).await;
    assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    Ok(())
}

fn unique(name: &str) -> TaskSpec {
    TaskSpec {
        unique_key: Some("the one".into()),
        ..spec(name)
    }
}

/// The second is not stored; the first one's id is given.
pub async fn a_unique_key_gives_the_unfinished_task(store: &dyn Fixture) -> Result<()> {
    let (broker, other) = (store.broker(), store.reopen().await);
    let first = submit(broker, unique("first")).await?;
    let second = other.submit(vec![NewTask::new(unique("second"))]).await?;
    assert_eq!(second, [Submitted::Existing(first)]);
    assert_eq!(broker.tasks(TaskFilter::default()).await?.len(), 1);
    assert_eq!(view(broker, first).await?.spec.display_name(), "first");
    Ok(())
}

/// A batch may hold both.
pub async fn a_unique_key_counts_within_a_batch(store: &dyn Fixture) -> Result<()> {
    let batch = [unique("first"), spec("other"), unique("second")]
        .map(NewTask::new)
        .to_vec();
    let stored = store.broker().submit(batch).await?;
    let [
        Submitted::New(first),
        Submitted::New(_),
        Submitted::Existing(existing),
    ] = stored[..]
    else {
        panic!("the third is the first: {stored:?}")
    };
    assert_eq!(first, existing);
    Ok(())
}

/// Finished or cancelled, the key is free.
pub async fn a_unique_key_is_free_once_its_task_is_over(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    let first = submit(broker, unique("first")).await?;
    end(broker, begin(broker, owner).await?, success()).await?;
    let second = submit(broker, unique("second")).await?;
    assert!(second > first);
    broker
        .control(
            second,
            raddle_model::ControlMessage::new(raddle_model::ControlCommand::Kill),
        )
        .await?;
    assert!(submit(broker, unique("third")).await? > second);
    Ok(())
}

/// A task that waits for its next attempt is not over.
pub async fn a_unique_key_is_kept_between_attempts(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    let first = submit(
        broker,
        TaskSpec {
            unique_key: Some("the one".into()),
            ..retrying(2, HumanDuration::secs(60))
        },
    )
    .await?;
    end(broker, begin(broker, owner).await?, failure()).await?;
    assert_eq!(submit(broker, unique("second")).await?, first);
    Ok(())
}

/// One clock for everything, over all handles.
pub async fn ids_increase_over_tasks_messages_and_events(store: &dyn Fixture) -> Result<()> {
    let (broker, other) = (store.broker(), store.reopen().await);
    let owner = worker(broker).await?;
    let mut ids = vec![owner];
    for n in 0..20 {
        let handle = if n % 2 == 0 { broker } else { &other };
        ids.push(submit(handle, spec("task")).await?);
        ids.extend(
            handle
                .put(free("free"), vec!["one".into(), "two".into()])
                .await?,
        );
        end(handle, begin(handle, owner).await?, success()).await?;
    }
    assert!(ids.is_sorted_by(|a, b| a < b), "{ids:?}");
    let events: Vec<_> = broker
        .events(Some(0), None, 1000, AT_ONCE)
        .await?
        .iter()
        .map(|event| event.id)
        .collect();
    assert!(events.is_sorted_by(|a, b| a < b), "{events:?}");
    let messages = ids.iter().filter(|id| !events.contains(id)).count();
    let all: BTreeSet<_> = ids.iter().chain(&events).collect();
    assert_eq!(
        all.len(),
        events.len() + messages,
        "no id stands for two things"
    );
    assert_eq!(messages, 40);
    Ok(())
}
