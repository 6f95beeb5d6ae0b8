//! Actions on many tasks.

use std::collections::BTreeSet;

use raddle_model::{ControlCommand, ControlMessage, HumanDuration, TaskSpec, TaskState, Tid};

use super::{Fixture, Handle, support::*};
use crate::{
    ClaimRequest, Error, Result, TaskFilter,
    operations::{
        MAX_SELECTED, NewOperation, OperationAction, OperationSelection, OperationState,
        OperationView,
    },
};

/// An operation on the tasks of a query, as of now.
async fn on_query(broker: &Handle, action: OperationAction, query: &str) -> Result<NewOperation> {
    let query = query.parse().expect("cases write valid queries");
    Ok(NewOperation {
        action,
        selection: OperationSelection::Query(query),
        as_of: Tid::from_u64(broker.last_event().await?).expect("there is an event"),
        expected: None,
        reason: "a case".into(),
        by: "conformance".into(),
    })
}

/// Advances an operation to its end, `most` tasks at a time.
async fn finish(broker: &Handle, id: Tid, most: u32) -> Result<OperationView> {
    loop {
        let view = broker.advance_operation(id, most).await?;
        if view.state != OperationState::Running {
            return Ok(view);
        }
    }
}

/// Tasks that failed and are dead letters.
async fn dead_letters(broker: &Handle, count: usize) -> Result<Vec<Tid>> {
    let owner = worker(broker).await?;
    let tids = submit_all(broker, vec![retrying(1, HumanDuration::default()); count]).await?;
    for claim in claim(broker, owner, count as u32).await? {
        end(broker, claim.attempt_id, failure()).await?;
    }
    broker.deregister(owner, None).await?;
    Ok(tids)
}

async fn count_dead(broker: &Handle) -> Result<u64> {
    Ok(broker.summary().await?.dead)
}

/// With two processes that advance it at the same time.
pub async fn an_operation_retries_each_dead_letter_once(store: &dyn Fixture) -> Result<()> {
    let (broker, other) = (store.broker(), store.reopen().await);
    let dead: BTreeSet<Tid> = dead_letters(broker, 25).await?.into_iter().collect();
    let request = on_query(broker, OperationAction::Retry, "dead:yes").await?;
    let id = broker.start_operation(request.clone()).await?;
    assert_eq!(count_dead(broker).await?, 25, "it was not advanced");
    let first = broker.advance_operation(id, 4).await?;
    assert_eq!((first.done, first.state), (4, OperationState::Running));
    assert_eq!(first.request, request);
    let one = finish(broker, id, 3);
    let (one, two) = tokio::join!(one, finish(&other, id, 5));
    let (one, two) = (one?, two?);
    assert_eq!(one, two);
    assert_eq!((one.state, one.done), (OperationState::Completed, 25));
    assert_eq!((one.changed, one.refused), (0, 0));
    assert_eq!(count_dead(broker).await?, 0);
    let waiting = TaskFilter {
        states: vec![TaskState::Created],
        ..TaskFilter::default()
    };
    let retried: Vec<Tid> = broker
        .tasks(waiting)
        .await?
        .iter()
        .filter_map(|task| task.spec.metadata.get("retry_of")?.as_str()?.parse().ok())
        .collect();
    assert_eq!(retried.len(), 25);
    assert_eq!(retried.into_iter().collect::<BTreeSet<_>>(), dead);
    assert_eq!(broker.advance_operation(id, 100).await?, one);
    Ok(())
}

/// Later tasks, and tasks that fail again after the operator has looked.
pub async fn tasks_that_have_changed_are_left_alone(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    let before = dead_letters(broker, 3).await?;
    submit(broker, retrying(1, HumanDuration::default())).await?;
    let running = begin(broker, owner).await?;
    let request = on_query(broker, OperationAction::Delete, "state:failed").await?;
    end(broker, running, failure()).await?;
    dead_letters(broker, 2).await?;
    let id = broker.start_operation(request).await?;
    let view = finish(broker, id, 100).await?;
    assert_eq!((view.done, view.changed, view.refused), (3, 1, 0));
    for tid in before {
        assert!(broker.task(tid).await?.is_none());
    }
    assert_eq!(
        broker.summary().await?.states[&TaskState::Failed],
        3,
        "later ones are there"
    );
    Ok(())
}

/// Those of the named tasks to which the action applies.
pub async fn named_tasks_are_stopped_and_deleted(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    let tids = submit_all(broker, vec![spec("task"); 4]).await?;
    let running = begin(broker, owner).await?;
    let named = |action, as_of: u64| NewOperation {
        action,
        selection: OperationSelection::Tasks(vec![tids[0], tids[2], tids[2], tids[1]]),
        as_of: Tid::from_u64(as_of).expect("there is an event"),
        expected: Some(3),
        reason: String::new(),
        by: String::new(),
    };
    let as_of = broker.last_event().await?;
    let id = broker
        .start_operation(named(OperationAction::Kill, as_of))
        .await?;
    let view = finish(broker, id, 2).await?;
    assert_eq!((view.done, view.refused, view.looked_at), (3, 0, 3));
    let words: Vec<_> = broker
        .recv_commands(owner, AT_ONCE)
        .await?
        .into_iter()
        .map(|delivery| (delivery.tid, delivery.body))
        .collect();
    let kill = ControlMessage::new(ControlCommand::Kill).to_text();
    assert_eq!(words, [(running.tid, kill)]);
    for (tid, state) in [(tids[1], TaskState::Killed), (tids[3], TaskState::Created)] {
        assert_eq!(view_state(broker, tid).await?, state);
    }
    let as_of = broker.last_event().await?;
    let id = broker
        .start_operation(named(OperationAction::Delete, as_of))
        .await?;
    let view = finish(broker, id, 100).await?;
    assert_eq!((view.done, view.refused), (2, 1));
    assert!(
        view.last_refusal
            .is_some_and(|reason| reason.contains("running"))
    );
    assert!(broker.task(tids[2]).await?.is_none());
    Ok(())
}

async fn view_state(broker: &Handle, tid: Tid) -> Result<TaskState> {
    Ok(view(broker, tid).await?.state)
}

/// With their ids, priorities, delays and pauses. Others stay.
pub async fn waiting_tasks_are_moved(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    submit(broker, spec("running")).await?;
    begin(broker, owner).await?;
    let ready = submit(broker, spec("ready")).await?;
    let delayed = TaskSpec {
        delay: Some(HumanDuration::secs(3600)),
        ..spec("delayed")
    };
    let delayed = submit(broker, delayed).await?;
    let paused = submit(broker, spec("paused")).await?;
    let pause = ControlMessage::new(ControlCommand::Pause);
    broker.control(paused, pause).await?;
    let action = OperationAction::Move {
        queue: "mail".into(),
    };
    let id = broker
        .start_operation(on_query(broker, action, "queue:default").await?)
        .await?;
    let moved = finish(broker, id, 2).await?;
    assert_eq!((moved.done, moved.refused, moved.changed), (3, 1, 0));
    let queues = broker.summary().await?.queues;
    let mail = &queues["mail"];
    assert_eq!((mail.ready, mail.delayed, mail.paused), (1, 1, 1));
    let left = &queues["default"];
    assert_eq!((left.ready, left.delayed, left.paused), (0, 0, 0));
    assert_eq!(left.running, 1);
    for tid in [ready, delayed, paused] {
        assert_eq!(view(broker, tid).await?.spec.queue, "mail");
    }
    assert!(view(broker, paused).await?.paused);
    assert!(view(broker, delayed).await?.run_at.is_some());
    assert!(claim(broker, owner, 10).await?.is_empty());
    let mail = ClaimRequest {
        queues: vec!["mail".into()],
        max: 10,
        ..request(owner)
    };
    let claims = broker.claim(mail).await?;
    assert_eq!(claims.len(), 1);
    assert_eq!(claims[0].attempt_id.tid, ready);
    assert_eq!(claims[0].spec.queue, "mail");
    Ok(())
}

/// Its changes stay.
pub async fn a_cancelled_operation_stops_where_it_is(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    dead_letters(broker, 6).await?;
    let request = on_query(broker, OperationAction::Retry, "dead:yes").await?;
    let id = broker.start_operation(request).await?;
    broker.advance_operation(id, 2).await?;
    let cancelled = broker.cancel_operation(id).await?;
    assert_eq!(cancelled.state, OperationState::Cancelled);
    let view = broker.advance_operation(id, 100).await?;
    assert_eq!((view.state, view.done), (OperationState::Cancelled, 2));
    assert_eq!(count_dead(broker).await?, 4);
    assert_eq!(broker.cancel_operation(id).await?, view);
    Ok(())
}

/// And found by id.
pub async fn operations_are_listed_newest_first(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    submit(broker, spec("task")).await?;
    let mut ids = Vec::new();
    for _ in 0..3 {
        let request = on_query(broker, OperationAction::Stop, "name:none").await?;
        ids.insert(0, broker.start_operation(request).await?);
    }
    let list = |views: Vec<OperationView>| views.iter().map(|view| view.id).collect::<Vec<_>>();
    assert_eq!(list(broker.operations(None, 10).await?), ids);
    assert_eq!(list(broker.operations(None, 2).await?), ids[..2]);
    assert_eq!(list(broker.operations(Some(ids[1]), 10).await?), [ids[1]]);
    let view = finish(broker, ids[0], 10).await?;
    assert_eq!((view.state, view.done), (OperationState::Completed, 0));
    let other = store.reopen().await;
    assert_eq!(other.operations(Some(ids[0]), 1).await?, [view]);
    Ok(())
}

/// And unknown ones.
pub async fn refuses_invalid_operations(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let tid = submit(broker, spec("task")).await?;
    let request = on_query(broker, OperationAction::Stop, "").await?;
    let selections = [vec![], vec![tid; MAX_SELECTED + 1]].map(OperationSelection::Tasks);
    for selection in selections {
        let request = NewOperation {
            selection,
            ..request.clone()
        };
        let refused = broker.start_operation(request).await;
        assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    }
    let nowhere = NewOperation {
        action: OperationAction::Move {
            queue: "no queue".into(),
        },
        ..request
    };
    let refused = broker.start_operation(nowhere).await;
    assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    for refused in [
        broker.advance_operation(tid, 1).await,
        broker.cancel_operation(tid).await,
    ] {
        assert!(matches!(refused, Err(Error::NoOperation(_))), "{refused:?}");
    }
    Ok(())
}
