//! The output of attempts.

use std::time::{Duration, Instant};

use raddle_model::{HumanDuration, TaskEventKind, TaskState, Tid};

use super::{Fixture, Handle, support::*};
use crate::{
    AttemptId, Completion, CompletionOutcome, Error, OutputChunk, OutputStream, Result, TaskCursor,
    TaskUpdate,
};

async fn running(broker: &Handle) -> Result<AttemptId> {
    let owner = worker(broker).await?;
    submit(broker, retrying(2, HumanDuration::default())).await?;
    begin(broker, owner).await
}

/// The end of an attempt that wrote `before` bytes to standard output while it ran, and ends with
/// `tail`.
fn ending(
    attempt_id: AttemptId,
    exit: raddle_model::ExitStatus,
    before: u64,
    tail: &[u8],
) -> Completion {
    let mut finish = Completion {
        stdout: tail.to_vec(),
        ..completion(attempt_id, exit)
    };
    finish.report.stdout_bytes = before + tail.len() as u64;
    finish
}

async fn stdout(broker: &Handle, attempt_id: AttemptId) -> Result<Vec<u8>> {
    broker
        .read_output(
            attempt_id.tid,
            attempt_id.attempt,
            OutputStream::Stdout,
            0,
            10_000_000,
        )
        .await
}

/// While the attempt runs, by any handle.
pub async fn output_is_read_from_any_place(store: &dyn Fixture) -> Result<()> {
    let (broker, other) = (store.broker(), store.reopen().await);
    let attempt_id = running(broker).await?;
    assert!(stdout(&other, attempt_id).await?.is_empty());
    broker
        .append_output(attempt_id, OutputStream::Stdout, b"hello ".to_vec())
        .await?;
    broker
        .append_output(attempt_id, OutputStream::Stderr, b"oh".to_vec())
        .await?;
    broker
        .append_output(attempt_id, OutputStream::Stdout, b"world".to_vec())
        .await?;
    for (offset, max, expected) in [
        (0, 100, "hello world"),
        (6, 3, "wor"),
        (10, 5, "d"),
        (11, 5, ""),
        (99, 5, ""),
    ] {
        let bytes = other
            .read_output(
                attempt_id.tid,
                attempt_id.attempt,
                OutputStream::Stdout,
                offset,
                max,
            )
            .await?;
        assert_eq!(String::from_utf8_lossy(&bytes), expected, "from {offset}");
    }
    assert_eq!(
        other
            .read_output(
                attempt_id.tid,
                attempt_id.attempt,
                OutputStream::Stderr,
                0,
                100
            )
            .await?,
        b"oh"
    );
    let next = AttemptId {
        attempt: attempt_id.attempt + 1,
        ..attempt_id
    };
    assert!(stdout(&other, next).await?.is_empty());
    Ok(())
}

/// Whatever was appended before.
pub async fn the_end_follows_what_came_before(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let attempt_id = running(broker).await?;
    broker
        .append_output(attempt_id, OutputStream::Stdout, b"begin ".to_vec())
        .await?;
    let outcome = broker
        .complete(vec![ending(attempt_id, success(), 6, b"end")])
        .await?;
    assert_eq!(outcome, [CompletionOutcome::Finished(TaskState::Completed)]);
    assert_eq!(stdout(broker, attempt_id).await?, b"begin end");
    Ok(())
}

/// Without having been appended.
pub async fn small_output_comes_with_the_end(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let attempt_id = running(broker).await?;
    let mut finish = ending(attempt_id, success(), 0, b"out");
    (finish.stderr, finish.report.stderr_bytes) = (b"err".to_vec(), 3);
    broker.complete(vec![finish]).await?;
    let other = store.reopen().await;
    assert_eq!(stdout(&other, attempt_id).await?, b"out");
    assert_eq!(
        other
            .read_output(
                attempt_id.tid,
                attempt_id.attempt,
                OutputStream::Stderr,
                1,
                100
            )
            .await?,
        b"rr"
    );
    Ok(())
}

/// Text or not.
pub async fn bytes_are_kept_as_they_are(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let attempt_id = running(broker).await?;
    let bytes: Vec<u8> = (0..=255).cycle().take(5000).collect();
    broker
        .append_output(attempt_id, OutputStream::Stdout, bytes.clone())
        .await?;
    let mut finish = ending(attempt_id, success(), 5000, &bytes);
    (finish.stderr, finish.report.stderr_bytes) = (bytes.clone(), 5000);
    broker.complete(vec![finish]).await?;
    assert_eq!(
        stdout(broker, attempt_id).await?,
        [bytes.clone(), bytes.clone()].concat()
    );
    assert_eq!(
        broker
            .read_output(
                attempt_id.tid,
                attempt_id.attempt,
                OutputStream::Stderr,
                0,
                10_000
            )
            .await?,
        bytes
    );
    Ok(())
}

/// Without a word: its worker learns of it with its next verdict.
pub async fn output_of_a_late_attempt_is_refused(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let attempt_id = running(broker).await?;
    broker
        .append_output(attempt_id, OutputStream::Stdout, b"kept".to_vec())
        .await?;
    release(broker, attempt_id).await?;
    broker
        .append_output(attempt_id, OutputStream::Stdout, b" lost".to_vec())
        .await?;
    assert_eq!(stdout(broker, attempt_id).await?, b"kept");
    let nowhere = Tid::from_u64(1_500_000_000_000_000_000).expect("in the range of ids");
    let unknown = AttemptId {
        tid: nowhere,
        attempt: 1,
        owner: nowhere,
    };
    broker
        .append_output(unknown, OutputStream::Stdout, b"lost".to_vec())
        .await?;
    assert!(stdout(broker, unknown).await?.is_empty());
    assert_eq!(broker.summary().await?.stale_writes, 0);
    Ok(())
}

/// The result that others have read does not change.
pub async fn a_late_finish_adds_no_output(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let attempt_id = running(broker).await?;
    broker
        .append_output(attempt_id, OutputStream::Stdout, b"begin ".to_vec())
        .await?;
    let finish = ending(attempt_id, success(), 6, b"end");
    broker.complete(vec![finish.clone()]).await?;
    assert_eq!(
        broker.complete(vec![finish]).await?,
        [CompletionOutcome::Stale]
    );
    assert_eq!(
        broker
            .complete(vec![ending(attempt_id, success(), 0, b"other")])
            .await?,
        [CompletionOutcome::Stale]
    );
    assert_eq!(stdout(broker, attempt_id).await?, b"begin end");
    Ok(())
}

/// Follows a task to its end.
async fn follow_to_the_end(
    broker: &Handle,
    tid: Tid,
) -> Result<(Vec<OutputChunk>, Vec<TaskEventKind>, TaskState)> {
    let (mut output, mut events, mut cursor) = (Vec::new(), Vec::new(), TaskCursor::default());
    loop {
        let progress = broker.follow(tid, cursor, SOON).await?;
        assert_ne!(
            progress,
            TaskUpdate {
                cursor,
                ..TaskUpdate::default()
            },
            "nothing for too long"
        );
        output.extend(progress.output);
        events.extend(progress.events.iter().map(|event| event.event));
        cursor = progress.cursor;
        if let Some(state) = progress.done {
            return Ok((output, events, state));
        }
    }
}

/// Output, events and the end, to a reader who is there all the time.
pub async fn following_gives_everything_once(store: &dyn Fixture) -> Result<()> {
    let (broker, other) = (store.broker(), store.reopen().await);
    let attempt_id = running(broker).await?;
    let following = tokio::spawn(async move { follow_to_the_end(&other, attempt_id.tid).await });
    for n in 0..20 {
        broker
            .append_output(
                attempt_id,
                OutputStream::Stdout,
                format!("{n} ").into_bytes(),
            )
            .await?;
        tokio::task::yield_now().await;
    }
    let expected: String = (0..20).map(|n| format!("{n} ")).collect();
    broker
        .complete(vec![ending(
            attempt_id,
            success(),
            expected.len() as u64,
            b"end",
        )])
        .await?;
    let (output, events, state) = following.await.expect("following does not panic")?;
    let text: Vec<u8> = output.into_iter().flat_map(|chunk| chunk.bytes).collect();
    assert_eq!(String::from_utf8_lossy(&text), expected + "end");
    assert_eq!(
        events,
        [
            TaskEventKind::Created,
            TaskEventKind::Spawning,
            TaskEventKind::Running,
            TaskEventKind::Completed
        ]
    );
    assert_eq!(state, TaskState::Completed);
    Ok(())
}

/// All of one before any of the next.
pub async fn following_gives_attempts_in_order(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let first = running(broker).await?;
    let owner = view(broker, first.tid)
        .await?
        .worker
        .expect("it is claimed");
    broker
        .append_output(first, OutputStream::Stderr, b"oh".to_vec())
        .await?;
    broker
        .complete(vec![ending(first, failure(), 0, b"one")])
        .await?;
    let second = begin(broker, owner).await?;
    release(broker, second).await?;
    let third = begin(broker, owner).await?;
    broker
        .complete(vec![ending(third, success(), 0, b"three")])
        .await?;
    let (output, _, state) = follow_to_the_end(broker, first.tid).await?;
    let told: Vec<_> = output
        .iter()
        .map(|chunk| (chunk.attempt, chunk.stream, &chunk.bytes[..]))
        .collect();
    let expected: [(u32, OutputStream, &[u8]); 3] = [
        (1, OutputStream::Stdout, b"one"),
        (1, OutputStream::Stderr, b"oh"),
        (3, OutputStream::Stdout, b"three"),
    ];
    assert_eq!(told, expected);
    assert_eq!(state, TaskState::Completed);
    Ok(())
}

/// In pieces, and `done` comes with the last.
pub async fn following_ends_after_large_output(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let attempt_id = running(broker).await?;
    let piece: Vec<u8> = (0..1_000_000u32).map(|n| (n % 251) as u8).collect();
    for _ in 0..3 {
        broker
            .append_output(attempt_id, OutputStream::Stdout, piece.clone())
            .await?;
    }
    broker
        .complete(vec![ending(attempt_id, success(), 3_000_000, b"end")])
        .await?;
    let first = broker
        .follow(attempt_id.tid, TaskCursor::default(), SOON)
        .await?;
    assert!(first.done.is_none(), "not all of it was given");
    let (output, ..) = follow_to_the_end(broker, attempt_id.tid).await?;
    let all: Vec<u8> = output.into_iter().flat_map(|chunk| chunk.bytes).collect();
    assert!(
        all == [&piece[..], &piece, &piece, b"end"].concat(),
        "{} bytes",
        all.len()
    );
    Ok(())
}

/// A reader that stops at `done` has seen all events of the task, however many other tasks had.
pub async fn following_ends_after_all_events(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let tid = super::log::finish_behind_many(broker).await?;
    let (_, events, state) = follow_to_the_end(broker, tid).await?;
    assert_eq!(
        events,
        [
            TaskEventKind::Created,
            TaskEventKind::Spawning,
            TaskEventKind::Running,
            TaskEventKind::Completed
        ]
    );
    assert_eq!(state, TaskState::Completed);
    Ok(())
}

/// There is nothing to wait for.
pub async fn following_what_is_not_there_fails(store: &dyn Fixture) -> Result<()> {
    let unknown = Tid::from_u64(1_500_000_000_000_000_000).expect("in the range of ids");
    let refused = store
        .broker()
        .follow(unknown, TaskCursor::default(), SOON)
        .await;
    assert!(
        matches!(refused, Err(Error::NotFound(tid)) if tid == unknown),
        "{refused:?}"
    );
    Ok(())
}

/// And gives the cursor back.
pub async fn following_waits_no_longer_than_asked(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let attempt_id = running(broker).await?;
    let first = broker
        .follow(attempt_id.tid, TaskCursor::default(), SOON)
        .await?;
    assert_eq!(first.events.len(), 3);
    let (began, wait) = (Instant::now(), Duration::from_millis(60));
    let second = broker.follow(attempt_id.tid, first.cursor, wait).await?;
    assert!(second.events.is_empty() && second.output.is_empty() && second.done.is_none());
    assert!(began.elapsed() >= wait);
    broker
        .append_output(attempt_id, OutputStream::Stdout, b"x".to_vec())
        .await?;
    let third = broker.follow(attempt_id.tid, second.cursor, SOON).await?;
    assert_eq!(
        third.output,
        [OutputChunk {
            attempt: 1,
            stream: OutputStream::Stdout,
            bytes: b"x".to_vec()
        }]
    );
    Ok(())
}
