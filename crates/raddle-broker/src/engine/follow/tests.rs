use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use raddle_model::TaskEventKind;

use super::*;

const TID: u64 = 1_700_000_000_000_000_000;

fn tid() -> Tid {
    Tid::from_u64(TID).unwrap()
}

fn stretch(events: usize, more: bool) -> LogRange {
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

/// Attempts that have written so much to each stream. They are numbered from one.
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

async fn look(
    written: &[[usize; 2]],
    done: Option<TaskState>,
    more: bool,
    from: TaskCursor,
) -> TaskUpdate {
    let standing = TaskPosition {
        attempt: written.len() as u32,
        done,
    };
    super::look(
        &Written(written.to_vec()),
        tid(),
        standing,
        stretch(0, more),
        from,
    )
    .await
    .unwrap()
}

fn sizes(progress: &TaskUpdate) -> Vec<(u32, OutputStream, usize)> {
    progress
        .output
        .iter()
        .map(|chunk| (chunk.attempt, chunk.stream, chunk.bytes.len()))
        .collect()
}

#[test]
fn events_are_given_and_entries_of_others_are_passed_over() {
    assert_eq!(stretch(1, false).then(), FollowStep::Give);
    assert_eq!(stretch(1, true).then(), FollowStep::Give);
    assert_eq!(stretch(0, true).then(), FollowStep::GoOn);
    assert_eq!(stretch(0, false).then(), FollowStep::Wait);
    assert_eq!(stretch(5, false).first(3).len(), 3);
}

#[tokio::test]
async fn a_look_reads_every_attempt_to_its_end() {
    let seen = look(
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
async fn a_look_goes_on_where_the_last_one_ended() {
    let first = look(&[[3, 1]], None, false, TaskCursor::default()).await;
    let next = look(&[[5, 1]], None, false, first.cursor).await;
    assert_eq!(sizes(&next), [(1, OutputStream::Stdout, 2)]);
}

#[tokio::test]
async fn the_end_is_told_after_all_output() {
    let most = AT_ONCE as usize;
    let first = look(
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
    let next = look(
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
async fn the_end_is_told_after_the_last_event() {
    assert_eq!(
        look(
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
async fn a_follower_waits_only_when_the_whole_log_was_looked_at() {
    let from = TaskCursor::default();
    let moved = look(&[[0, 0]], None, false, from).await;
    assert_eq!(then(from, &moved), FollowStep::GoOn);
    assert_eq!(
        then(
            moved.cursor,
            &look(&[[0, 0]], None, false, moved.cursor).await
        ),
        FollowStep::Wait
    );
    assert_eq!(
        then(
            moved.cursor,
            &look(&[[1, 0]], None, false, moved.cursor).await
        ),
        FollowStep::Give
    );
    assert_eq!(
        then(
            moved.cursor,
            &look(&[[0, 0]], Some(TaskState::Killed), false, moved.cursor).await
        ),
        FollowStep::Give
    );
}
