//! Tests of reads for followers.

use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use raddle_model::TaskEventKind;

use super::*;

const TID: u64 = 1_700_000_000_000_000_000;

fn tid() -> Tid {
    Tid::from_u64(TID).unwrap()
}

fn range(events: usize, more: bool) -> LogRange {
    let event = |offset| TaskEvent {
        id: Tid::from_u64(TID + offset).unwrap(),
        tid: tid(),
        event: TaskEventKind::Running,
        at: Timestamp::UNIX_EPOCH,
        attempt: 1,
        worker: None,
        detail: None,
    };
    LogRange {
        events: (1..=events as u64).map(event).collect(),
        scanned: TID + 100,
        more,
    }
}

/// Attempts, numbered from 1, with the sizes of their two streams.
struct Written(Vec<[usize; 2]>);

#[async_trait]
impl Output for Written {
    async fn read_output(
        &self,
        _: Tid,
        attempt: u32,
        stream: OutputStream,
        offset: u64,
        max: u32,
    ) -> Result<Vec<u8>> {
        let there = self.0[attempt as usize - 1][stream as usize];
        Ok(vec![b'x'; (there - offset as usize).min(max as usize)])
    }

    async fn follow(&self, _: Tid, _: TaskCursor, _: Duration) -> Result<TaskUpdate> {
        Err(crate::Error::Closed)
    }
}

async fn read(
    written: &[[usize; 2]],
    done: Option<TaskState>,
    more: bool,
    from: TaskCursor,
) -> TaskUpdate {
    let position = TaskPosition {
        attempt: written.len() as u32,
        done,
    };
    super::read_update(
        &Written(written.to_vec()),
        tid(),
        position,
        range(0, more),
        from,
    )
    .await
    .unwrap()
}

fn sizes(update: &TaskUpdate) -> Vec<(u32, OutputStream, usize)> {
    update
        .output
        .iter()
        .map(|chunk| (chunk.attempt, chunk.stream, chunk.bytes.len()))
        .collect()
}

#[test]
fn returns_events_and_skips_entries_of_other_tasks() {
    assert_eq!(range(1, false).next_step(), FollowStep::Return);
    assert_eq!(range(1, true).next_step(), FollowStep::Return);
    assert_eq!(range(0, true).next_step(), FollowStep::ReadOn);
    assert_eq!(range(0, false).next_step(), FollowStep::Wait);
    assert_eq!(range(5, false).into_first(3).len(), 3);
}

#[tokio::test]
async fn one_read_covers_all_attempts() {
    let seen = read(
        &[[3, 0], [0, 4]],
        Some(TaskState::Completed),
        false,
        TaskCursor::default(),
    )
    .await;
    assert_eq!(
        sizes(&seen),
        [(1, OutputStream::Stdout, 3), (2, OutputStream::Stderr, 4)]
    );
    assert_eq!(
        seen.cursor,
        TaskCursor {
            event: TID + 100,
            attempt: 2,
            stdout: 0,
            stderr: 4
        }
    );
    assert_eq!(seen.done, Some(TaskState::Completed));
}

#[tokio::test]
async fn next_read_continues_at_the_cursor() {
    let first = read(&[[3, 1]], None, false, TaskCursor::default()).await;
    let next = read(&[[5, 1]], None, false, first.cursor).await;
    assert_eq!(sizes(&next), [(1, OutputStream::Stdout, 2)]);
}

#[tokio::test]
async fn reports_the_end_after_all_output() {
    let most = CHUNK_BYTES as usize;
    let first = read(
        &[[most + 1, 2], [1, 0]],
        Some(TaskState::Failed),
        false,
        TaskCursor::default(),
    )
    .await;
    assert_eq!(
        sizes(&first),
        [
            (1, OutputStream::Stdout, most),
            (1, OutputStream::Stderr, 2)
        ]
    );
    assert_eq!(first.done, None);
    let next = read(
        &[[most + 1, 2], [1, 0]],
        Some(TaskState::Failed),
        false,
        first.cursor,
    )
    .await;
    assert_eq!(
        sizes(&next),
        [(1, OutputStream::Stdout, 1), (2, OutputStream::Stdout, 1)]
    );
    assert_eq!(next.done, Some(TaskState::Failed));
}

#[tokio::test]
async fn reports_the_end_after_the_last_event() {
    assert_eq!(
        read(
            &[[0, 0]],
            Some(TaskState::Failed),
            true,
            TaskCursor::default()
        )
        .await
        .done,
        None
    );
}

#[tokio::test]
async fn waits_only_after_the_whole_log_was_read() {
    let from = TaskCursor::default();
    let moved = read(&[[0, 0]], None, false, from).await;
    assert_eq!(next_step(from, &moved), FollowStep::ReadOn);
    assert_eq!(
        next_step(
            moved.cursor,
            &read(&[[0, 0]], None, false, moved.cursor).await
        ),
        FollowStep::Wait
    );
    assert_eq!(
        next_step(
            moved.cursor,
            &read(&[[1, 0]], None, false, moved.cursor).await
        ),
        FollowStep::Return
    );
    assert_eq!(
        next_step(
            moved.cursor,
            &read(&[[0, 0]], Some(TaskState::Killed), false, moved.cursor).await
        ),
        FollowStep::Return
    );
}
