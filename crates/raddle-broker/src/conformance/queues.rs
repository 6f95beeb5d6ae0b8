//! Queues by name: read, write, move, watch and broadcast.

use std::time::Duration;

use raddle_model::{
    ControlCommand, ControlMessage, ExitStatus, QueueName, TaskSpec, TaskState, Tid,
    queue_name::{SystemQueue, TaskQueue},
    spec::ReservedPolicy,
};
use serde_json::Value;

use super::{Fixture, Handle, support::*};
use crate::{
    ControlDelivery, DeliveryOutcome, Error, Message, QueueSize, Result,
    queues::{self, Watch, WriteOutcome},
};

fn parsed(messages: &[Message]) -> Vec<Value> {
    messages
        .iter()
        .map(|message| serde_json::from_str(&message.body).expect("records are JSON"))
        .collect()
}

async fn peek(broker: &Handle, queue: QueueName) -> Result<Vec<Value>> {
    Ok(parsed(&queues::peek(&**broker, &queue, 1000).await?))
}

fn names(queues: &[QueueName]) -> Vec<String> {
    queues.iter().map(QueueName::to_string).collect()
}

/// As often as one likes.
pub async fn free_queues_are_read_and_written(store: &dyn Fixture) -> Result<()> {
    let (broker, jobs) = (&**store.broker(), free("jobs"));
    let written = queues::write(broker, &jobs, vec!["a".into(), "b".into()]).await?;
    let [WriteOutcome::Stored(first), WriteOutcome::Stored(_)] = written[..] else {
        panic!("both are stored: {written:?}")
    };
    assert_eq!(
        queues::peek(broker, &jobs, 1).await?,
        [Message {
            id: first,
            body: "a".into()
        }]
    );
    assert_eq!(
        queues::move_messages(broker, &jobs, &free("more"), 1).await?,
        1
    );
    assert_eq!(queues::read(broker, &jobs, 9, SOON).await?.len(), 1);
    assert_eq!(queues::delete(broker, &free("more")).await?, 1);
    assert!(queues::read(broker, &jobs, 9, AT_ONCE).await?.is_empty());
    Ok(())
}

/// Inbox, reserved, outbox: with one id from request to result.
pub async fn the_states_of_a_task_show_in_its_queues(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    let tid = submit(broker, spec("task")).await?;
    let ports = [TaskQueue::Inbox, TaskQueue::Reserved, TaskQueue::Outbox]
        .map(|port| QueueName::Task(tid, port));
    let queue_sizes = async || -> Result<[usize; 3]> {
        let mut queue_sizes = [0; 3];
        for (depth, queue) in queue_sizes.iter_mut().zip(&ports) {
            let seen = queues::peek(&**broker, queue, 10).await?;
            assert!(seen.iter().all(|message| message.id == tid));
            *depth = seen.len();
        }
        Ok(queue_sizes)
    };
    assert_eq!(queue_sizes().await?, [1, 0, 0]);
    assert_eq!(
        peek(broker, ports[0].clone()).await?[0]["spec"]["name"],
        "task"
    );
    let attempt_id = begin(broker, owner).await?;
    assert_eq!(queue_sizes().await?, [0, 1, 0]);
    let mut finish = completion(attempt_id, success());
    (finish.stdout, finish.report.stdout_bytes) = (b"h\xffi".to_vec(), 3);
    broker.complete(vec![finish]).await?;
    assert_eq!(queue_sizes().await?, [0, 0, 1]);
    let result = &peek(broker, ports[2].clone()).await?[0];
    assert_eq!(result["tid"], tid.to_string());
    assert_eq!(
        (&result["state"], &result["exit_code"]),
        (&"completed".into(), &0.into())
    );
    assert_eq!(result["stdout"], "h\u{fffd}i");
    assert_eq!(result["report"]["exit"]["code"], 0);
    Ok(())
}

/// That is what `keep` keeps.
pub async fn a_dead_task_stays_reserved(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    let tid = submit(broker, spec("task")).await?;
    end(broker, begin(broker, owner).await?, failure()).await?;
    assert_eq!(
        peek(broker, QueueName::Task(tid, TaskQueue::Reserved))
            .await?
            .len(),
        1
    );
    assert_eq!(
        peek(broker, QueueName::Task(tid, TaskQueue::Outbox)).await?[0]["exit_code"],
        3
    );
    broker.resubmit(tid, false).await?;
    assert!(
        peek(broker, QueueName::Task(tid, TaskQueue::Reserved))
            .await?
            .is_empty()
    );
    Ok(())
}

/// So that what was asked for can be looked at; it is no dead letter, as nothing went wrong.
pub async fn a_stopped_task_stays_reserved_when_the_spec_says_so(
    store: &dyn Fixture,
) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    for (on_stop, kept) in [(ReservedPolicy::Keep, 1), (ReservedPolicy::Clear, 0)] {
        let given = TaskSpec {
            on_stop,
            ..spec("task")
        };
        let ran = submit(broker, given.clone()).await?;
        end(broker, begin(broker, owner).await?, ExitStatus::Cancelled).await?;
        let waited = submit(broker, given).await?;
        broker
            .control(waited, ControlMessage::new(ControlCommand::Stop))
            .await?;
        for tid in [ran, waited] {
            let reserved = QueueName::Task(tid, TaskQueue::Reserved);
            let seen = peek(broker, reserved.clone()).await?;
            assert_eq!(seen.len(), kept, "{on_stop:?}");
            assert!(seen.iter().all(|message| message["spec"]["name"] == "task"));
            assert_eq!(
                queues::list(&**broker, &reserved.to_string()).await?.len(),
                kept
            );
            assert_eq!(
                peek(broker, QueueName::Task(tid, TaskQueue::Outbox)).await?[0]["state"],
                "cancelled"
            );
        }
    }
    let killed = submit(
        broker,
        TaskSpec {
            on_stop: ReservedPolicy::Keep,
            ..spec("task")
        },
    )
    .await?;
    broker
        .control(killed, ControlMessage::new(ControlCommand::Kill))
        .await?;
    assert!(
        peek(broker, QueueName::Task(killed, TaskQueue::Reserved))
            .await?
            .is_empty()
    );
    assert!(
        peek(broker, QueueName::System(SystemQueue::Dead))
            .await?
            .is_empty()
    );
    Ok(())
}

/// A second way to take a task would be a way to lose one.
pub async fn records_are_read_not_taken(store: &dyn Fixture) -> Result<()> {
    let broker = &**store.broker();
    let tid = submit(store.broker(), spec("task")).await?;
    let inbox = QueueName::Task(tid, TaskQueue::Inbox);
    let log = QueueName::System(SystemQueue::Log);
    let is_view =
        |refused: Result<()>| assert!(matches!(refused, Err(Error::View(..))), "{refused:?}");
    for queue in [&inbox, &log] {
        is_view(queues::read(broker, queue, 1, AT_ONCE).await.map(drop));
        is_view(
            queues::move_messages(broker, queue, &free("jobs"), 1)
                .await
                .map(drop),
        );
        is_view(queues::delete(broker, queue).await.map(drop));
    }
    is_view(
        queues::write(broker, &log, vec!["x".into()])
            .await
            .map(drop),
    );
    queues::write(broker, &free("jobs"), vec!["x".into()]).await?;
    is_view(
        queues::move_messages(broker, &free("jobs"), &log, 1)
            .await
            .map(drop),
    );
    queues::write(broker, &inbox, vec!["note".into()]).await?;
    let read = queues::read(broker, &inbox, 9, AT_ONCE).await?;
    assert_eq!(
        read.len(),
        1,
        "a message that was written there can be taken"
    );
    assert_eq!(read[0].body, "note");
    assert_eq!(view(store.broker(), tid).await?.state, TaskState::Created);
    Ok(())
}

/// By the broker while the task waits, by its worker while it runs.
pub async fn commands_written_to_a_queue_are_applied(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    let tid = submit(broker, spec("task")).await?;
    begin(broker, owner).await?;
    let waiting = submit(broker, spec("task")).await?;
    let sent = queues::write(&**broker, &ctrl_in(tid), vec!["status".into()]).await?;
    assert_eq!(sent, [WriteOutcome::Control(tid, DeliveryOutcome::Sent)]);
    assert_eq!(
        broker.recv_commands(owner, SOON).await?,
        [ControlDelivery {
            tid,
            body: "STATUS".into()
        }]
    );
    let text = r#"{"command":"KILL","request_id":"r"}"#.to_string();
    let applied = queues::write(&**broker, &ctrl_in(waiting), vec![text]).await?;
    assert_eq!(
        applied,
        [WriteOutcome::Control(
            waiting,
            DeliveryOutcome::Applied(TaskState::Killed)
        )]
    );
    let late = queues::write(&**broker, &ctrl_in(waiting), vec!["STOP".into()]).await;
    assert!(matches!(late, Err(Error::Finished(..))), "{late:?}");
    Ok(())
}

/// Whether the task waits or runs, and none of several messages is sent if one of them is refused.
pub async fn unknown_control_messages_are_refused(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    let running = submit(broker, spec("running")).await?;
    begin(broker, owner).await?;
    let waiting = submit(broker, spec("waiting")).await?;
    for tid in [running, waiting] {
        let refused =
            queues::write(&**broker, &ctrl_in(tid), vec!["KILL".into(), "SIT".into()]).await;
        let Err(error @ Error::Control(_)) = refused else {
            panic!("SIT is no command: {refused:?}")
        };
        assert!(
            error.to_string().contains("RESUME"),
            "it lists the commands: {error}"
        );
    }
    assert!(queue_sizes(broker).await?.is_empty());
    assert_eq!(view(broker, waiting).await?.state, TaskState::Created);
    Ok(())
}

/// Also in JSON.
pub async fn control_messages_are_read_in_any_case(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    for stop in [
        "stop",
        "Stop",
        r#"{"command":"stop"}"#,
        r#"{"command":"Stop","request_id":"r-1"}"#,
    ] {
        let tid = submit(broker, spec("task")).await?;
        let written = queues::write(&**broker, &ctrl_in(tid), vec![stop.into()]).await?;
        assert_eq!(
            written,
            [WriteOutcome::Control(
                tid,
                DeliveryOutcome::Applied(TaskState::Cancelled)
            )],
            "{stop}"
        );
    }
    Ok(())
}

/// Its entry in the registry names it.
pub async fn the_inbox_of_a_worker_takes_requests(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    let inbox = QueueName::Task(owner, TaskQueue::Inbox);
    let registry = peek(broker, QueueName::System(SystemQueue::Registry)).await?;
    assert_eq!(registry[0]["queue"], inbox.to_string());
    let asked =
        r#"{"spec": {"name": "asked", "queue": "elsewhere", "target": {"command": ["true"]}}}"#;
    let written = queues::write(&**broker, &inbox, vec![asked.into()]).await?;
    let [WriteOutcome::Stored(tid)] = written[..] else {
        panic!("it is a task: {written:?}")
    };
    assert_eq!(view(broker, tid).await?.state, TaskState::Created);
    assert_eq!(claim_names(broker, request(owner)).await?, ["asked"]);
    for wrong in ["asked", r#"{"task": "unknown"}"#, r#"{"spec": {}}"#] {
        let refused = queues::write(&**broker, &inbox, vec![asked.into(), wrong.into()]).await;
        assert!(
            matches!(refused, Err(Error::Invalid(_))),
            "{wrong}: {refused:?}"
        );
    }
    assert!(
        claim(broker, owner, 1).await?.is_empty(),
        "none or all are submitted"
    );
    Ok(())
}

/// One queue for all of them.
pub async fn broadcasts_commands_to_all_workers(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let workers = [worker(broker).await?, worker(broker).await?];
    let queue = QueueName::System(SystemQueue::Control);
    let written = queues::write(&**broker, &queue, vec!["PING".into()]).await?;
    assert_eq!(
        written,
        workers.map(|tid| WriteOutcome::Control(tid, DeliveryOutcome::Sent))
    );
    for tid in workers {
        assert_eq!(
            broker.recv_commands(tid, SOON).await?,
            [ControlDelivery {
                tid,
                body: "PING".into()
            }]
        );
    }
    assert!(matches!(
        queues::write(&**broker, &queue, vec!["SIT".into()]).await,
        Err(Error::Control(_))
    ));
    Ok(())
}

/// They are obeyed one by one.
pub async fn refuses_to_move_commands(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let tid = submit(broker, spec("task")).await?;
    queues::write(&**broker, &free("words"), vec!["KILL".into()]).await?;
    let refused = queues::move_messages(&**broker, &free("words"), &ctrl_in(tid), 1).await;
    assert!(
        matches!(refused, Err(Error::ControlQueue(_))),
        "{refused:?}"
    );
    assert_eq!(bodies(broker, &free("words")).await?, ["KILL"]);
    Ok(())
}

/// The log, the ids, the workers and the dead.
pub async fn views_show_records(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    let dead = submit(broker, spec("dead")).await?;
    end(broker, begin(broker, owner).await?, failure()).await?;
    let waiting = submit(broker, spec("waiting")).await?;
    let log = peek(broker, QueueName::System(SystemQueue::Log)).await?;
    assert_eq!(log.len(), 2 + 4 + 1);
    assert_eq!(
        (&log[5]["tid"], &log[5]["event"]),
        (&dead.to_string().into(), &"failed".into())
    );
    let ids = peek(broker, QueueName::System(SystemQueue::TidMappings)).await?;
    let full: Vec<_> = ids
        .iter()
        .map(|entry| entry["full"].as_str().unwrap_or_default().to_string())
        .collect();
    assert_eq!(full, [owner.to_string(), waiting.to_string()]);
    assert_eq!(ids[1]["short"], waiting.short().to_string());
    assert_eq!(
        (&ids[1]["name"], &ids[1]["pid"]),
        (&"waiting".into(), &Value::Null)
    );
    let registry = peek(broker, QueueName::System(SystemQueue::Registry)).await?;
    assert_eq!(
        (registry.len(), &registry[0]["tid"]),
        (1, &owner.to_string().into())
    );
    let doing = peek(broker, QueueName::System(SystemQueue::Status)).await?;
    assert_eq!(
        (doing.len(), &doing[0]["tid"], &doing[0]["status"]),
        (1, &owner.to_string().into(), &"active".into())
    );
    let exhausted = peek(broker, QueueName::System(SystemQueue::Dead)).await?;
    assert_eq!(
        (exhausted.len(), &exhausted[0]["tid"]),
        (1, &dead.to_string().into())
    );
    Ok(())
}

/// Stored ones, views, and those of tasks, if they hold anything.
pub async fn queues_are_listed_by_name(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    assert!(queues::list(&**broker, "*").await?.is_empty());
    queues::write(&**broker, &free("jobs.b"), vec!["x".into(), "y".into()]).await?;
    queues::write(&**broker, &free("jobs.a"), vec!["x".into()]).await?;
    let tid = submit(broker, spec("task")).await?;
    let all: Vec<_> = queues::list(&**broker, "*")
        .await?
        .into_iter()
        .map(|depth| depth.queue)
        .collect();
    let inbox = QueueName::Task(tid, TaskQueue::Inbox);
    let expected = [
        inbox.to_string(),
        "jobs.a".into(),
        "jobs.b".into(),
        "raddle.tasks.log".into(),
        "raddle.tid.mappings".into(),
    ];
    assert_eq!(names(&all), expected);
    assert_eq!(
        queues::list(&**broker, "*.b").await?,
        [QueueSize {
            queue: free("jobs.b"),
            messages: 2
        }]
    );
    assert_eq!(
        queues::list(&**broker, "T*").await?,
        [QueueSize {
            queue: inbox,
            messages: 1
        }]
    );
    assert!(queues::list(&**broker, "jobs").await?.is_empty());
    Ok(())
}

/// However many there are.
pub async fn the_queues_of_many_tasks_are_listed(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    let tids = submit_all(broker, vec![spec("task"); 2100]).await?;
    for _ in 0..2 {
        end(broker, begin(broker, owner).await?, failure()).await?;
    }
    let inboxes = queues::list(&**broker, "T*.inbox").await?;
    assert_eq!(inboxes.len(), 2098);
    assert!(
        inboxes
            .iter()
            .zip(&tids[2..])
            .all(|(depth, tid)| depth.queue == QueueName::Task(*tid, TaskQueue::Inbox))
    );
    assert_eq!(queues::list(&**broker, "T*").await?.len(), 2098 + 2 * 2 + 1);
    let depth = |system, messages| QueueSize {
        queue: QueueName::System(system),
        messages,
    };
    let views = queues::list(&**broker, "raddle.*").await?;
    for expected in [
        depth(SystemQueue::Dead, 2),
        depth(SystemQueue::TidMappings, 2099),
        depth(SystemQueue::Log, 2 + 2100 + 2 * 3),
    ] {
        assert!(views.contains(&expected), "{expected:?} in {views:?}");
    }
    let ids = queues::stats(&**broker, &QueueName::System(SystemQueue::TidMappings)).await?;
    let shown = queues::peek(&**broker, &ids.queue, u32::MAX).await?;
    assert_eq!(shown.len(), 2099);
    assert!(shown.is_sorted_by(|a, b| a.id < b.id));
    assert_eq!(
        ids.bytes,
        shown
            .iter()
            .map(|message| message.body.len() as u64)
            .sum::<u64>()
    );
    assert!(ids.oldest < ids.newest);
    Ok(())
}

/// And when they were written.
pub async fn stats_count_messages_and_bytes(store: &dyn Fixture) -> Result<()> {
    let broker = &**store.broker();
    queues::write(
        broker,
        &free("jobs"),
        (0..2500).map(|_| "four".into()).collect(),
    )
    .await?;
    let stats = queues::stats(broker, &free("jobs")).await?;
    assert_eq!((stats.messages, stats.bytes), (2500, 10_000));
    assert!(stats.oldest.is_some() && stats.oldest <= stats.newest);
    let none = queues::stats(broker, &free("none")).await?;
    assert_eq!((none.messages, none.bytes, none.oldest), (0, 0, None));
    Ok(())
}

/// And no others.
pub async fn a_broadcast_reaches_queues_that_hold_something(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    for name in ["jobs.a", "jobs.b", "mail"] {
        queues::write(&**broker, &free(name), vec!["x".into()]).await?;
    }
    let reached = queues::broadcast(&**broker, "jobs.*", "news").await?;
    assert_eq!(names(&reached), ["jobs.a", "jobs.b"]);
    assert_eq!(bodies(broker, &free("jobs.b")).await?, ["x", "news"]);
    assert_eq!(bodies(broker, &free("mail")).await?, ["x"]);
    assert!(
        queues::broadcast(&**broker, "nothing.*", "news")
            .await?
            .is_empty()
    );
    Ok(())
}

/// `*` must not be able to stop everything.
pub async fn a_broadcast_reaches_control_queues_only_by_name(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let tids = submit_all(broker, vec![spec("a"), spec("b")]).await?;
    broker
        .control(tids[0], ControlMessage::new(ControlCommand::Ping))
        .await?;
    queues::broadcast(&**broker, "*", "KILL").await?;
    for tid in &tids {
        assert_eq!(view(broker, *tid).await?.state, TaskState::Created);
    }
    let reached = queues::broadcast(&**broker, "T*.ctrl_in", "KILL").await?;
    assert_eq!(
        reached,
        tids.iter().map(|tid| ctrl_in(*tid)).collect::<Vec<_>>()
    );
    for tid in &tids {
        assert_eq!(view(broker, *tid).await?.state, TaskState::Killed);
    }
    Ok(())
}

/// First the stored messages, then new ones.
pub async fn watching_shows_each_message_once(store: &dyn Fixture) -> Result<()> {
    let (broker, other) = (store.broker(), store.reopen().await);
    for queue in [free("jobs"), QueueName::System(SystemQueue::Log)] {
        let mut watch = Watch::new(queue.clone(), 0);
        let add = async || -> Result<()> {
            match &queue {
                QueueName::System(_) => submit(broker, spec("task")).await.map(drop),
                free => broker.put(free.clone(), vec!["x".into()]).await.map(drop),
            }
        };
        for _ in 0..3 {
            add().await?;
            assert_eq!(watch.next(&*other, SOON).await?.len(), 1);
        }
        assert!(
            watch
                .next(&*other, Duration::from_millis(30))
                .await?
                .is_empty()
        );
    }
    Ok(())
}

/// However old it is.
pub async fn watching_shows_what_is_moved_there(store: &dyn Fixture) -> Result<()> {
    let (broker, other) = (store.broker(), store.reopen().await);
    broker.put(free("elsewhere"), vec!["old".into()]).await?;
    broker.put(free("jobs"), vec!["new".into()]).await?;
    let mut watch = Watch::new(free("jobs"), 0);
    assert_eq!(watch.next(&*other, SOON).await?[0].body, "new");
    broker
        .move_messages(free("elsewhere"), free("jobs"), 1)
        .await?;
    assert_eq!(watch.next(&*other, SOON).await?[0].body, "old");
    Ok(())
}

/// A task comes into the dead-letter queue with the id it has always had.
pub async fn watching_shows_records_as_they_come(store: &dyn Fixture) -> Result<()> {
    let (broker, other) = (store.broker(), store.reopen().await);
    let owner = worker(broker).await?;
    let tids = submit_all(broker, vec![spec("a"), spec("b")]).await?;
    let fences = [begin(broker, owner).await?, begin(broker, owner).await?];
    let mut dead = Watch::new(QueueName::System(SystemQueue::Dead), 0);
    let mut outbox = Watch::new(QueueName::Task(tids[1], TaskQueue::Outbox), 0);
    let ids = |messages: Vec<Message>| {
        messages
            .into_iter()
            .map(|message| message.id)
            .collect::<Vec<Tid>>()
    };
    end(broker, fences[1], failure()).await?;
    assert_eq!(ids(dead.next(&*other, SOON).await?), [tids[1]]);
    assert_eq!(ids(outbox.next(&*other, SOON).await?), [tids[1]]);
    let waiting = tokio::spawn(async move { dead.next(&*other, SOON).await });
    end(broker, fences[0], failure()).await?;
    assert_eq!(
        ids(waiting.await.expect("watching does not panic")?),
        [tids[0]]
    );
    Ok(())
}

/// As `--new` asks for.
pub async fn watching_for_new_messages_skips_stored_ones(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    let dead = SystemQueue::Dead;
    submit_all(
        broker,
        vec![
            spec("old"),
            TaskSpec {
                priority: 1,
                ..spec("new")
            },
        ],
    )
    .await?;
    let (old, new) = (begin(broker, owner).await?, begin(broker, owner).await?);
    end(broker, old, failure()).await?;
    let now = broker.put(free("jobs"), vec!["x".into()]).await?[0].as_u64();
    let mut watch = Watch::new(QueueName::System(dead), now);
    assert!(watch.next(&**broker, AT_ONCE).await?.is_empty());
    end(broker, new, failure()).await?;
    let news = watch.next(&**broker, SOON).await?;
    assert_eq!(
        news.iter().map(|message| message.id).collect::<Vec<_>>(),
        [new.tid]
    );
    let mut jobs = Watch::new(free("jobs"), now);
    assert!(jobs.next(&**broker, AT_ONCE).await?.is_empty());
    Ok(())
}
