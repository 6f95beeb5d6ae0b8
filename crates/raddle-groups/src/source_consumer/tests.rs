//! Tests of the source consumer: no message is lost, converted twice or blocked.

use std::sync::Mutex;

use async_trait::async_trait;
use raddle_broker::{Call, CallHandler, Reply, SummaryDetail, TaskFilter, Tasks};
use raddle_broker_sqlite::Sqlite;
use raddle_model::spec::MAX_SPEC_BYTES;
use serde_json::json;
use tokio::task::JoinSet;

use super::{super::desired_state::declare, *};
use crate::{GroupWorker, Process};

/// Decides the outcome of a transaction of these messages.
type Outcome = Box<dyn FnMut(&[Message]) -> Result<()> + Send>;

/// A broker whose transactions fail as a test decides.
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

fn process(slug: &str) -> Process {
    Process::new(slug).worker(GroupWorker::command(slug, ["cat"]).source("orders"))
}

fn queue(name: &str) -> QueueName {
    name.parse().unwrap()
}

async fn bodies_in(broker: &dyn Messages, name: &str) -> Vec<String> {
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

/// Runs a consumer until `holds` returns true.
async fn consume_until(consumer: &mut SourceConsumer<'_>, holds: impl AsyncFn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !holds().await {
        assert!(Instant::now() < deadline, "it takes too long");
        // A turn that finds no message waits for one.
        let _ = tokio::time::timeout(Duration::from_millis(100), consumer.consume_batch()).await;
    }
}

fn server_error() -> Error {
    Error::Server {
        place: "here".into(),
        reason: "ERR script".into(),
    }
}

#[tokio::test]
async fn a_worker_with_an_invalid_event_gets_dead_messages_and_blocks_no_other() {
    let broker = Sqlite::in_memory().await.unwrap();
    declare(&broker, &[process("mail")], None, None)
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
        .consume_batch()
        .await
        .unwrap();
    assert_eq!(
        (
            tasks_of(&broker, "mail").await,
            bodies_in(&broker, "odd.dead").await
        ),
        (words.clone(), words)
    );
    assert_eq!(bodies_in(&broker, "orders").await, [""; 0]);
}

#[tokio::test]
async fn moves_a_message_that_cannot_be_a_task_to_the_dead_queue() {
    let broker = Sqlite::in_memory().await.unwrap();
    declare(&broker, &[process("mail")], None, None)
        .await
        .unwrap();
    let large = "x".repeat(MAX_SPEC_BYTES + 1);
    broker
        .put(queue("orders"), vec!["a".into(), large.clone(), "b".into()])
        .await
        .unwrap();
    let mut consumer = SourceConsumer::new(&broker, queue("orders"), "orders".into());
    consumer.consume_batch().await.unwrap();
    assert_eq!(tasks_of(&broker, "mail").await, ["a", "b"]);
    assert_eq!(
        (
            bodies_in(&broker, "mail.dead").await,
            bodies_in(&broker, "orders").await.len()
        ),
        (vec![large], 0)
    );
    // A worker whose source is that queue leaves the message there: it does not go round.
    declare(
        &broker,
        &[Process::new("mail").worker(GroupWorker::command("mail", ["cat"]).source("mail.dead"))],
        None,
        None,
    )
    .await
    .unwrap();
    SourceConsumer::new(&broker, queue("mail.dead"), "mail.dead".into())
        .consume_batch()
        .await
        .unwrap();
    assert_eq!(bodies_in(&broker, "mail.dead").await.len(), 1);
}

/// Also after retries, and when the connection is cut in between.
#[tokio::test]
async fn a_dead_letter_is_written_once() {
    let mut calls = 0;
    let outcome = move |_: &[Message]| {
        calls += 1;
        // Transactions: all messages, this message alone, and then with its dead message.
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
    declare(&broker.memory, &[process("mail")], None, None)
        .await
        .unwrap();
    let large = "x".repeat(MAX_SPEC_BYTES + 1);
    broker
        .put(queue("orders"), vec![large.clone()])
        .await
        .unwrap();
    let _ = SourceConsumer::new(&broker, queue("orders"), "orders".into())
        .consume_batch()
        .await;
    assert_eq!(
        (
            bodies_in(&broker, "orders").await.len(),
            bodies_in(&broker, "mail.dead").await.len()
        ),
        (1, 0)
    );
    SourceConsumer::new(&broker, queue("orders"), "orders".into())
        .consume_batch()
        .await
        .unwrap();
    assert_eq!(
        (
            bodies_in(&broker, "orders").await.len(),
            bodies_in(&broker, "mail.dead").await
        ),
        (0, vec![large])
    );
}

#[tokio::test]
async fn skips_no_message_after_a_transient_error() {
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
    declare(&broker.memory, &[process("mail")], None, None)
        .await
        .unwrap();
    broker
        .put(queue("orders"), vec!["a".into(), "b".into()])
        .await
        .unwrap();
    let mut consumer = SourceConsumer::new(&broker, queue("orders"), "orders".into());
    consume_until(&mut consumer, async || {
        tasks_of(&broker.memory, "mail").await.len() == 2
    })
    .await;
    let mut made = tasks_of(&broker.memory, "mail").await;
    made.sort();
    assert_eq!(
        (made, bodies_in(&broker, "orders").await),
        (vec!["a".to_owned(), "b".into()], Vec::new())
    );
}

#[tokio::test]
async fn keeps_a_message_that_is_never_converted_and_converts_the_rest() {
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
    declare(&broker.memory, &[process("mail")], None, None)
        .await
        .unwrap();
    let many = 3 * BATCH as usize;
    let mut words = vec!["stuck".to_owned(); BATCH as usize + 1];
    words.extend(vec!["free".to_owned(); many]);
    broker.put(queue("orders"), words).await.unwrap();
    let mut consumer = SourceConsumer::new(&broker, queue("orders"), "orders".into());
    consume_until(&mut consumer, async || {
        tasks_of(&broker.memory, "mail").await.len() == many
    })
    .await;
    assert_eq!(tasks_of(&broker.memory, "mail").await, vec!["free"; many]);
    assert_eq!(
        bodies_in(&broker, "orders").await,
        vec!["stuck"; BATCH as usize + 1]
    );
    assert_eq!(
        consumer.logged.len(),
        BATCH as usize + 1,
        "each is in the log, once"
    );
    *broker.outcome.lock().unwrap() = Box::new(|_| Ok(()));
    consume_until(&mut consumer, async || {
        bodies_in(&broker, "orders").await.is_empty()
    })
    .await;
    assert_eq!(
        (
            bodies_in(&broker, "orders").await,
            tasks_of(&broker.memory, "mail").await.len()
        ),
        (vec![], many + 65)
    );
}

#[tokio::test]
async fn several_consumers_make_one_task_per_message_and_subscriber() {
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
