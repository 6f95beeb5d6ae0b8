//! Forgetting tasks that finished long enough ago.

use std::time::Duration;

use raddle_model::{ControlCommand, ControlMessage, HumanDuration, TaskSpec};

use super::{Fixture, support::*};
use crate::{Completion, OutputStream, Result, TaskFilter};

/// Events, output and messages.
pub async fn old_tasks_go_with_all_their_records(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    let tid = submit(
        broker,
        TaskSpec {
            result_ttl: Some(HumanDuration::millis(1)),
            ..spec("task")
        },
    )
    .await?;
    broker
        .control(tid, ControlMessage::new(ControlCommand::Ping))
        .await?;
    let attempt_id = begin(broker, owner).await?;
    broker
        .append_output(attempt_id, OutputStream::Stderr, b"err".to_vec())
        .await?;
    let mut finish = Completion {
        stdout: b"out".to_vec(),
        ..completion(attempt_id, success())
    };
    finish.report.stdout_bytes = 3;
    finish.report.stderr_bytes = 3;
    broker.complete(vec![finish]).await?;
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(broker.purge().await?, 1);
    assert!(broker.task(tid).await?.is_none());
    assert!(broker.tasks(TaskFilter::default()).await?.is_empty());
    for stream in OutputStream::BOTH {
        assert!(
            broker
                .read_output(attempt_id.tid, attempt_id.attempt, stream, 0, 10)
                .await?
                .is_empty()
        );
    }
    assert!(queue_sizes(broker).await?.is_empty());
    assert!(
        broker
            .events(Some(0), None, 100, AT_ONCE)
            .await?
            .iter()
            .all(|event| event.tid == owner)
    );
    assert!(
        broker
            .events(Some(0), Some(tid), 100, AT_ONCE)
            .await?
            .is_empty()
    );
    assert!(broker.summary().await?.states.is_empty());
    assert_eq!(broker.purge().await?, 0);
    Ok(())
}

/// Unfinished tasks stay, and finished ones within their retention.
pub async fn keeps_unfinished_and_recent_tasks(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    let brief = |name| TaskSpec {
        result_ttl: Some(HumanDuration::default()),
        ..spec(name)
    };
    submit_all(
        broker,
        vec![spec("kept"), brief("running"), brief("waiting")],
    )
    .await?;
    end(broker, begin(broker, owner).await?, success()).await?;
    begin(broker, owner).await?;
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(broker.purge().await?, 0);
    assert_eq!(
        broker
            .tasks(TaskFilter {
                services: true,
                ..TaskFilter::default()
            })
            .await?
            .len(),
        4
    );
    Ok(())
}
