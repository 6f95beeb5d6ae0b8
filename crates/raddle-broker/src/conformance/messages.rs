//! Stored messages.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use raddle_model::{HumanDuration, QueueName, TaskSpec, Tid};

use super::{Fixture, support::*};
use crate::{
    ControlDelivery, Message, MessageTransaction, NewMessage, NewTask, PeekRequest, Result, queues,
};

fn texts(messages: &[Message]) -> Vec<&str> {
    messages
        .iter()
        .map(|message| message.body.as_str())
        .collect()
}

/// The oldest first, up to `max`, and each once.
pub async fn messages_are_taken_in_order(store: &dyn Fixture) -> Result<()> {
    let (broker, queue) = (store.broker(), free("jobs"));
    let ids = broker
        .put(queue.clone(), vec!["a".into(), "b \u{1f9f5}\n".into()])
        .await?;
    broker.put(queue.clone(), vec![String::new()]).await?;
    broker.put(free("other"), vec!["x".into()]).await?;
    let taken = store.reopen().await.take(queue.clone(), 2, AT_ONCE).await?;
    assert_eq!(texts(&taken), ["a", "b \u{1f9f5}\n"]);
    assert_eq!(
        taken.iter().map(|message| message.id).collect::<Vec<_>>(),
        ids
    );
    assert_eq!(texts(&broker.take(queue.clone(), 9, AT_ONCE).await?), [""]);
    assert!(broker.take(queue.clone(), 9, AT_ONCE).await?.is_empty());
    Ok(())
}

/// However often.
pub async fn peeking_takes_nothing(store: &dyn Fixture) -> Result<()> {
    let (broker, queue) = (store.broker(), free("jobs"));
    broker
        .put(queue.clone(), vec!["a".into(), "b".into()])
        .await?;
    for _ in 0..3 {
        assert_eq!(bodies(broker, &queue).await?, ["a", "b"]);
    }
    let first = broker
        .peek(PeekRequest {
            queue,
            after: 0,
            max: 1,
            wait: AT_ONCE,
        })
        .await?;
    assert_eq!(texts(&first), ["a"]);
    Ok(())
}

/// An id need not be there any more.
pub async fn peeking_continues_after_an_id(store: &dyn Fixture) -> Result<()> {
    let (broker, queue) = (store.broker(), free("jobs"));
    let ids = broker
        .put(queue.clone(), vec!["a".into(), "b".into(), "c".into()])
        .await?;
    broker.take(queue.clone(), 2, AT_ONCE).await?;
    for (after, left) in [
        (0, 1),
        (ids[0].as_u64(), 1),
        (ids[1].as_u64(), 1),
        (ids[2].as_u64(), 0),
        (u64::MAX, 0),
    ] {
        let seen = broker
            .peek(PeekRequest {
                queue: queue.clone(),
                after,
                max: 10,
                wait: AT_ONCE,
            })
            .await?;
        assert_eq!(seen.len(), left, "after {after}");
    }
    Ok(())
}

/// Moved messages get new ids, so a reader at the end of the queue sees them.
pub async fn moved_messages_come_last(store: &dyn Fixture) -> Result<()> {
    let (broker, from, to) = (store.broker(), free("from"), free("to"));
    broker
        .put(from.clone(), vec!["a".into(), "b".into()])
        .await?;
    let there = broker.put(to.clone(), vec!["c".into()]).await?[0];
    broker.put(from.clone(), vec!["d".into()]).await?;
    assert_eq!(broker.move_messages(from.clone(), to.clone(), 2).await?, 2);
    assert_eq!(bodies(broker, &to).await?, ["c", "a", "b"]);
    let news = broker
        .peek(PeekRequest {
            queue: to.clone(),
            after: there.as_u64(),
            max: 10,
            wait: AT_ONCE,
        })
        .await?;
    assert_eq!(texts(&news), ["a", "b"]);
    assert!(news[0].id < news[1].id);
    let next = broker.put(to.clone(), vec!["e".into()]).await?[0];
    assert!(next > news[1].id, "ids are used once");
    assert_eq!(bodies(broker, &from).await?, ["d"]);
    assert_eq!(
        broker.move_messages(from.clone(), from.clone(), 5).await?,
        1,
        "a queue may be moved onto itself"
    );
    assert_eq!(bodies(broker, &from).await?, ["d"]);
    assert_eq!(broker.move_messages(free("empty"), to.clone(), 5).await?, 0);
    Ok(())
}

/// All or nothing: the messages go and the tasks come, and who comes later finds that it was done.
pub async fn messages_become_tasks_once(store: &dyn Fixture) -> Result<()> {
    let (broker, queue) = (store.broker(), free("events"));
    broker
        .put(queue.clone(), vec!["a".into(), "b".into(), "c".into()])
        .await?;
    let seen = broker
        .peek(PeekRequest {
            queue: queue.clone(),
            after: 0,
            max: 2,
            wait: AT_ONCE,
        })
        .await?;
    let of = |messages: &[Message], names: &[&str]| MessageTransaction {
        queue: queue.clone(),
        messages: messages.to_vec(),
        tasks: names
            .iter()
            .map(|name| {
                NewTask::new(TaskSpec {
                    queue: format!("q-{name}"),
                    ..spec(name)
                })
            })
            .collect(),
        new_messages: Vec::new(),
    };
    // Two tasks in two new queues: their partitions are new to all workers.
    let made = broker
        .apply_transaction(of(&seen, &["x", "y"]))
        .await?
        .expect("both are there");
    assert_eq!(made.len(), 2);
    for (submitted, name) in made.iter().zip(["x", "y"]) {
        let task = broker
            .task(submitted.tid())
            .await?
            .expect("it was submitted");
        assert_eq!(task.spec.queue, format!("q-{name}"));
    }
    assert_eq!(bodies(broker, &queue).await?, ["c"]);
    assert_eq!(
        store
            .reopen()
            .await
            .apply_transaction(of(&seen, &["x"]))
            .await?,
        None,
        "another caller was faster"
    );
    let left = broker
        .peek(PeekRequest {
            queue: queue.clone(),
            after: 0,
            max: 9,
            wait: AT_ONCE,
        })
        .await?;
    let both: Vec<Message> = seen.iter().take(1).chain(&left).cloned().collect();
    assert_eq!(
        broker.apply_transaction(of(&both, &["x"])).await?,
        None,
        "one of them is gone, and so nothing is done"
    );
    assert_eq!(bodies(broker, &queue).await?, ["c"]);
    assert_eq!(
        broker.apply_transaction(of(&left, &[])).await?,
        Some(Vec::new()),
        "of a message may become nothing"
    );
    assert!(bodies(broker, &queue).await?.is_empty() && queue_sizes(broker).await?.is_empty());
    // Many at once: each is converted by one of them.
    broker.put(queue.clone(), vec!["d".into()]).await?;
    let last = broker
        .peek(PeekRequest {
            queue: queue.clone(),
            after: 0,
            max: 9,
            wait: AT_ONCE,
        })
        .await?;
    let (mut tries, mut made) = (Vec::new(), 0);
    for _ in 0..8 {
        let (another, conversion) = (store.reopen().await, of(&last, &["z"]));
        tries.push(tokio::spawn(async move {
            another.apply_transaction(conversion).await
        }));
    }
    for attempt in tries {
        made += usize::from(attempt.await.expect("it does not panic")?.is_some());
    }
    assert_eq!(made, 1);
    let wrong = MessageTransaction {
        tasks: vec![NewTask::new(TaskSpec::command(Vec::<String>::new()))],
        ..of(&[], &[])
    };
    assert!(
        broker.apply_transaction(wrong).await.is_err(),
        "a task that cannot be run is refused"
    );
    Ok(())
}

/// In the step in which the others go, and so once; also into the queue that those were in, and
/// beside tasks that expire or are there already.
pub async fn messages_become_others_once(store: &dyn Fixture) -> Result<()> {
    let (broker, queue) = (store.broker(), free("events"));
    broker
        .put(queue.clone(), vec!["a".into(), "b".into()])
        .await?;
    let seen = broker
        .peek(PeekRequest {
            queue: queue.clone(),
            after: 0,
            max: 9,
            wait: AT_ONCE,
        })
        .await?;
    let message = |queue: QueueName, body: &str| NewMessage {
        queue,
        body: body.into(),
    };
    let keyed = TaskSpec {
        unique_key: Some("k".into()),
        lifetime: Some(HumanDuration::secs(60)),
        ..spec("keyed")
    };
    let new_messages = vec![
        message(free("dead"), "a \u{1f9f5}\n"),
        message(queue.clone(), "c"),
        message(free("dead"), ""),
        message(queue.clone(), "d"),
    ];
    let tasks = vec![
        NewTask::new(keyed.clone()),
        NewTask::new(spec("plain")),
        NewTask::new(keyed),
    ];
    let of = MessageTransaction {
        queue: queue.clone(),
        messages: seen.clone(),
        tasks,
        new_messages,
    };
    let wrong = NewTask::new(TaskSpec::command(Vec::<String>::new()));
    let refused = broker
        .apply_transaction(MessageTransaction {
            tasks: vec![wrong],
            ..of.clone()
        })
        .await;
    assert!(
        refused.is_err() && bodies(broker, &free("dead")).await?.is_empty(),
        "nothing is done: {refused:?}"
    );
    let made = broker
        .apply_transaction(of.clone())
        .await?
        .expect("both are there");
    assert_eq!((made.len(), made[2].tid()), (3, made[0].tid()));
    for _ in 0..2 {
        assert_eq!(bodies(broker, &free("dead")).await?, ["a \u{1f9f5}\n", ""]);
        assert_eq!(bodies(broker, &queue).await?, ["c", "d"]);
        assert_eq!(
            store.reopen().await.apply_transaction(of.clone()).await?,
            None,
            "another caller was faster"
        );
    }
    // A waiting reader is woken, also if nothing else changes.
    let waiting = store.reopen().await;
    let looks = tokio::spawn(async move { waiting.take(free("late"), 1, SOON).await });
    let none = MessageTransaction {
        queue: queue.clone(),
        messages: Vec::new(),
        tasks: Vec::new(),
        new_messages: Vec::new(),
    };
    let made = broker
        .apply_transaction(MessageTransaction {
            new_messages: vec![message(free("late"), "e")],
            ..none.clone()
        })
        .await?;
    assert_eq!(made, Some(Vec::new()));
    assert_eq!(texts(&looks.await.expect("it does not panic")?), ["e"]);
    // A control word is one, however it was put.
    let owner = worker(broker).await?;
    let tid = submit(
        broker,
        TaskSpec {
            priority: 9,
            ..spec("told")
        },
    )
    .await?;
    assert_eq!(begin(broker, owner).await?.tid, tid);
    broker
        .apply_transaction(MessageTransaction {
            new_messages: vec![message(ctrl_in(tid), "PING")],
            ..none
        })
        .await?;
    assert_eq!(
        broker.recv_commands(owner, SOON).await?,
        [ControlDelivery {
            tid,
            body: "PING".into()
        }]
    );
    Ok(())
}

/// And no longer.
pub async fn queues_exist_while_they_hold_something(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    assert!(queue_sizes(broker).await?.is_empty());
    broker.put(free("a"), vec!["1".into(), "2".into()]).await?;
    broker.put(free("b"), vec!["3".into()]).await?;
    broker.put(free("c"), Vec::new()).await?;
    assert_eq!(
        queue_sizes(broker).await?,
        [(free("a"), 2), (free("b"), 1)].into()
    );
    broker.take(free("a"), 2, AT_ONCE).await?;
    broker.move_messages(free("b"), free("d"), 1).await?;
    assert_eq!(queue_sizes(broker).await?, [(free("d"), 1)].into());
    Ok(())
}

/// And leaves other queues alone.
pub async fn clearing_says_how_many(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    broker.put(free("a"), vec!["1".into(), "2".into()]).await?;
    broker.put(free("b"), vec!["3".into()]).await?;
    assert_eq!(queues::delete(&**broker, &free("a")).await?, 2);
    assert_eq!(queues::delete(&**broker, &free("a")).await?, 0);
    assert_eq!(bodies(broker, &free("b")).await?, ["3"]);
    Ok(())
}

/// By one of those who take at the same time.
pub async fn each_message_is_taken_once(store: &dyn Fixture) -> Result<()> {
    let (broker, queue) = (store.broker(), free("jobs"));
    let put = broker
        .put(queue.clone(), (0..200).map(|n| n.to_string()).collect())
        .await?;
    let mut takers: tokio::task::JoinSet<Result<Vec<Tid>>> = tokio::task::JoinSet::new();
    for handle in [
        broker.clone(),
        store.reopen().await,
        broker.clone(),
        store.reopen().await,
    ] {
        let queue = queue.clone();
        takers.spawn(async move {
            let mut ids = Vec::new();
            loop {
                let taken = handle.take(queue.clone(), 7, AT_ONCE).await?;
                if taken.is_empty() {
                    return Ok(ids);
                }
                ids.extend(taken.into_iter().map(|message| message.id));
            }
        });
    }
    let mut taken = Vec::new();
    while let Some(ids) = takers.join_next().await {
        taken.extend(ids.expect("takers do not panic")?);
    }
    assert_eq!(taken.len(), put.len());
    assert_eq!(
        taken.into_iter().collect::<BTreeSet<_>>(),
        put.into_iter().collect()
    );
    Ok(())
}

/// Not earlier than asked.
pub async fn waiting_for_a_message_ends(store: &dyn Fixture) -> Result<()> {
    let (broker, queue, wait) = (store.broker(), free("jobs"), Duration::from_millis(60));
    let began = Instant::now();
    assert!(broker.take(queue.clone(), 1, wait).await?.is_empty());
    assert!(
        broker
            .peek(PeekRequest {
                queue,
                after: 0,
                max: 1,
                wait
            })
            .await?
            .is_empty()
    );
    assert!(began.elapsed() >= 2 * wait);
    Ok(())
}
