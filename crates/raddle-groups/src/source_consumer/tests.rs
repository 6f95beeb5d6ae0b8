//! Tests of `SourceConsumer`: no message is lost, doubled, or blocks others.

use std::sync::Mutex;

use async_trait::async_trait;
use raddle_broker::{Call, CallHandler, Queries, Reply, SummaryDetail, TaskFilter};
use raddle_broker_sqlite::Sqlite;
use raddle_model::spec::MAX_SPEC_BYTES;
use serde_json::json;
use tokio::task::JoinSet;

use super::{super::desired_state::declare, *};
use crate::{GroupWorker, Process};

/// The outcome of a transaction with these messages.
type Outcome = Box<dyn FnMut(&[Message]) -> Result<()> + Send>;

/// A broker whose transactions fail as configured.
struct FailingBroker {
    memory: Sqlite,
    outcome: Mutex<Outcome>,
}

#[async_trait]
impl CallHandler for FailingBroker {
    async fn call(&self, call: Call) -> Result<Reply> {
        if let Call::ApplyTransaction { transaction } = &call {
            (*self.outcome.lock().unwrap())(&transaction.messages)?;
        }
        call.perform(&self.memory).await
    }
}

fn subscriber(slug: &str) -> Process {
    Process::new(slug).worker(GroupWorker::command(slug, ["cat"]).source("orders"))
}

fn queue(name: &str) -> QueueName {
    name.parse().unwrap()
}

async fn messages_in(broker: &dyn Messages, name: &str) -> Vec<String> {
    let peek = PeekRequest {
        queue: queue(name),
        after: 0,
        max: 1000,
        wait: Duration::ZERO,
    };
    broker
        .peek(peek)
        .await
        .unwrap()
        .into_iter()
        .map(|message| message.body)
        .collect()
}

/// The messages that have become tasks of a worker, in order.
async fn tasks_of(broker: &Sqlite, slug: &str) -> Vec<String> {
    let mut tasks = broker.tasks(TaskFilter::default()).await.unwrap();
    tasks.retain(|task| task.spec.queue == slug);
    tasks.sort_by_key(|task| task.tid);
    tasks
        .into_iter()
        .map(|task| task.spec.stdin.unwrap())
        .collect()
}

/// Runs a consumer until this holds.
async fn step_until(consumer: &mut SourceConsumer<'_>, holds: impl AsyncFn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !holds().await {
        assert!(Instant::now() < deadline, "it takes too long");
        // A step without work waits for messages.
        let _ = tokio::time::timeout(Duration::from_millis(100), consumer.step()).await;
    }
}

fn server_error() -> Error {
    Error::Server {
        place: "here".into(),
        reason: "ERR script".into(),
    }
}

#[tokio::test]
async fn a_worker_whose_tasks_are_refused_blocks_no_other_and_loses_nothing() {
    let broker = Sqlite::in_memory().await.unwrap();
    declare(&broker, &[subscriber("mail")], None, None)
        .await
        .unwrap();
    let state = json!({
        "slug": "odd", "process": "odd", "sources": ["orders"], "on": true, "replicas": 1, "scales": true,
        "event": { "target": { "command": [""] }, "queue": "odd" },
    });
    broker
        .put(queue("raddle.groups"), vec![state.to_string()])
        .await
        .unwrap();
    let words: Vec<String> = (0..3).map(|number| number.to_string()).collect();
    broker.put(queue("orders"), words.clone()).await.unwrap();
    SourceConsumer::new(&broker, queue("orders"), "orders".into())
        .step()
        .await
        .unwrap();
    assert_eq!(
        (
            tasks_of(&broker, "mail").await,
            messages_in(&broker, "odd.dead").await
        ),
        (words.clone(), words)
    );
    assert_eq!(messages_in(&broker, "orders").await, [""; 0]);
}

#[tokio::test]
async fn an_oversized_message_is_dead_and_blocks_nothing() {
    let broker = Sqlite::in_memory().await.unwrap();
    declare(&broker, &[subscriber("mail")], None, None)
        .await
        .unwrap();
    let large = "x".repeat(MAX_SPEC_BYTES + 1);
    broker
        .put(queue("orders"), vec!["a".into(), large.clone(), "b".into()])
        .await
        .unwrap();
    let mut consumer = SourceConsumer::new(&broker, queue("orders"), "orders".into());
    consumer.step().await.unwrap();
    assert_eq!(tasks_of(&broker, "mail").await, ["a", "b"]);
    assert_eq!(
        (
            messages_in(&broker, "mail.dead").await,
            messages_in(&broker, "orders").await.len()
        ),
        (vec![large], 0)
    );
    // Messages of that queue stay in it, even if it is a source: they must not loop.
    declare(
        &broker,
        &[Process::new("mail").worker(GroupWorker::command("mail", ["cat"]).source("mail.dead"))],
        None,
        None,
    )
    .await
    .unwrap();
    SourceConsumer::new(&broker, queue("mail.dead"), "mail.dead".into())
        .step()
        .await
        .unwrap();
    assert_eq!(messages_in(&broker, "mail.dead").await.len(), 1);
}

/// Even if it is retried after a lost answer.
#[tokio::test]
async fn a_dead_letter_is_written_once() {
    let mut calls = 0;
    let outcome = move |_: &[Message]| {
        calls += 1;
        // For all messages, for one alone, then with its dead letter.
        if calls == 3 {
            Err(Error::AgentGone {
                path: "a".into(),
                reason: "cut".into(),
            })
        } else {
            Ok(())
        }
    };
    let broker = FailingBroker {
        memory: Sqlite::in_memory().await.unwrap(),
        outcome: Mutex::new(Box::new(outcome)),
    };
    declare(&broker.memory, &[subscriber("mail")], None, None)
        .await
        .unwrap();
    let large = "x".repeat(MAX_SPEC_BYTES + 1);
    broker
        .put(queue("orders"), vec![large.clone()])
        .await
        .unwrap();
    let _ = SourceConsumer::new(&broker, queue("orders"), "orders".into())
        .step()
        .await;
    assert_eq!(
        (
            messages_in(&broker, "orders").await.len(),
            messages_in(&broker, "mail.dead").await.len()
        ),
        (1, 0)
    );
    SourceConsumer::new(&broker, queue("orders"), "orders".into())
        .step()
        .await
        .unwrap();
    assert_eq!(
        (
            messages_in(&broker, "orders").await.len(),
            messages_in(&broker, "mail.dead").await
        ),
        (0, vec![large])
    );
}

#[tokio::test]
async fn a_retryable_error_skips_no_message() {
    let mut errors = [
        Error::Unanswered {
            place: "here".into(),
            what: "stored it".into(),
            reason: "cut".into(),
        },
        Error::Unreachable {
            place: "here".into(),
            reason: "gone".into(),
            down: true,
        },
        server_error(),
        server_error(),
        server_error(),
    ]
    .into_iter();
    let outcome =
        Mutex::new(Box::new(move |_: &[Message]| errors.next().map_or(Ok(()), Err)) as Outcome);
    let broker = FailingBroker {
        memory: Sqlite::in_memory().await.unwrap(),
        outcome,
    };
    declare(&broker.memory, &[subscriber("mail")], None, None)
        .await
        .unwrap();
    broker
        .put(queue("orders"), vec!["a".into(), "b".into()])
        .await
        .unwrap();
    let mut consumer = SourceConsumer::new(&broker, queue("orders"), "orders".into());
    step_until(&mut consumer, async || {
        tasks_of(&broker.memory, "mail").await.len() == 2
    })
    .await;
    let mut made = tasks_of(&broker.memory, "mail").await;
    made.sort();
    assert_eq!(
        (made, messages_in(&broker, "orders").await),
        (vec!["a".to_owned(), "b".into()], Vec::new())
    );
}

#[tokio::test]
async fn a_message_that_is_always_refused_stays_and_later_ones_go_on() {
    let stuck = |messages: &[Message]| {
        if messages.iter().any(|message| message.body == "stuck") {
            Err(server_error())
        } else {
            Ok(())
        }
    };
    let broker = FailingBroker {
        memory: Sqlite::in_memory().await.unwrap(),
        outcome: Mutex::new(Box::new(stuck)),
    };
    declare(&broker.memory, &[subscriber("mail")], None, None)
        .await
        .unwrap();
    let many = 3 * BATCH as usize;
    let mut words = vec!["stuck".to_owned(); BATCH as usize + 1];
    words.extend(vec!["free".to_owned(); many]);
    broker.put(queue("orders"), words).await.unwrap();
    let mut consumer = SourceConsumer::new(&broker, queue("orders"), "orders".into());
    step_until(&mut consumer, async || {
        tasks_of(&broker.memory, "mail").await.len() == many
    })
    .await;
    assert_eq!(tasks_of(&broker.memory, "mail").await, vec!["free"; many]);
    assert_eq!(
        messages_in(&broker, "orders").await,
        vec!["stuck"; BATCH as usize + 1]
    );
    assert_eq!(
        consumer.logged.len(),
        BATCH as usize + 1,
        "each is logged once"
    );
    *broker.outcome.lock().unwrap() = Box::new(|_| Ok(()));
    step_until(&mut consumer, async || {
        messages_in(&broker, "orders").await.is_empty()
    })
    .await;
    assert_eq!(
        (
            messages_in(&broker, "orders").await,
            tasks_of(&broker.memory, "mail").await.len()
        ),
        (vec![], many + 65)
    );
}

#[tokio::test]
async fn each_message_becomes_one_task_per_subscriber_with_many_consumers() {
    let broker: Arc<dyn Broker> = Arc::new(Sqlite::in_memory().await.unwrap());
    let of = |slug: &str| {
        Process::new(slug).worker(GroupWorker::command(slug, ["cat"]).source("orders"))
    };
    declare(&*broker, &[of("mail"), of("stock")], None, None)
        .await
        .unwrap();
    let source: QueueName = "orders".parse().unwrap();
    let mut consumers = JoinSet::new();
    for _ in 0..5 {
        consumers.spawn(consume_source(Arc::clone(&broker), "orders".to_owned()));
    }
    for number in 0..300 {
        broker
            .put(source.clone(), vec![number.to_string()])
            .await
            .unwrap();
    }
    let find = || async { broker.tasks(TaskFilter::default()).await.unwrap() };
    let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
    while find().await.len() < 600 && tokio::time::Instant::now() < deadline {
        sleep(Duration::from_millis(10)).await;
    }
    sleep(Duration::from_millis(50)).await;
    let tasks = find().await;
    let distinct: BTreeSet<(String, String)> = tasks
        .iter()
        .map(|task| (task.spec.queue.clone(), task.spec.stdin.clone().unwrap()))
        .collect();
    assert_eq!((tasks.len(), distinct.len()), (600, 600));
    let summary = broker
        .summarize(SummaryDetail {
            messages: true,
            ..SummaryDetail::default()
        })
        .await
        .unwrap();
    assert!(!summary.messages.contains_key(&source));
}
