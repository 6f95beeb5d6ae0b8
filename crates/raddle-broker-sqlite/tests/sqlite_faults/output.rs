//! Output that is written while the database, or the disk, stands still.

use std::{
    fs,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use raddle_broker::{AttemptId, Output, OutputStream, Queries, Tasks};
use raddle_broker_sqlite::Sqlite;
use rustix::fs::OFlags;

use crate::{helper::Other, support::*};

/// Long enough for whatever is not held up to begin, also on a machine that is busy with all else.
const WHILE: Duration = Duration::from_secs(2);

async fn begun(broker: &Sqlite) -> AttemptId {
    submit(broker, vec![spec("task")]).await.unwrap();
    let owner = worker(broker, TTL).await;
    broker.claim(request(owner, SOON)).await.unwrap()[0].attempt_id
}

/// A submitter that is stopped in the middle of a commit holds the lock for as long as it likes.
#[tokio::test]
async fn output_is_kept_while_somebody_holds_the_write_lock() {
    let (_directory, path) = place();
    let broker = open(&path).await;
    let attempt_id = begun(&broker).await;
    let mut other = Other::start("hold", &path);
    assert_eq!(other.hear().unwrap(), ["held"]);
    let mut waits = Box::pin(submit(&broker, vec![spec("later")]));
    assert!(
        tokio::time::timeout(WHILE, &mut waits).await.is_err(),
        "what has the database stands still"
    );
    for piece in ["said ", "meanwhile"] {
        let kept = tokio::time::timeout(
            SOON / 4,
            broker.append_output(attempt_id, OutputStream::Stdout, piece.into()),
        )
        .await;
        kept.expect("it does not wait for the lock").unwrap();
    }
    other.kill();
    waits.await.unwrap();
    assert_eq!(
        broker
            .read_output(
                attempt_id.tid,
                attempt_id.attempt,
                OutputStream::Stdout,
                0,
                100
            )
            .await
            .unwrap(),
        b"said meanwhile"
    );
}

/// Makes the file of a stream a pipe: whoever opens it to write stands still until somebody reads.
fn obstruct(path: &Path, attempt_id: AttemptId) -> PathBuf {
    let out = path.with_file_name("broker.db-out");
    fs::create_dir(&out).unwrap();
    let pipe = out.join(format!("{}.{}.err", attempt_id.tid, attempt_id.attempt));
    assert!(
        Command::new("mkfifo")
            .arg(&pipe)
            .status()
            .unwrap()
            .success()
    );
    pipe
}

/// Lets go on whoever stands still there, for as long as this is kept.
fn clear(pipe: &Path) -> fs::File {
    fs::File::options()
        .read(true)
        .custom_flags(OFlags::NONBLOCK.bits() as i32)
        .open(pipe)
        .unwrap()
}

/// What was given up before its turn must not be written behind, or over, what has come since.
#[tokio::test]
async fn output_is_written_in_turn_or_not_at_all() {
    let (_directory, path) = place();
    let broker = open(&path).await;
    let attempt_id = begun(&broker).await;
    let pipe = obstruct(&path, attempt_id);
    let mut held_up = Vec::new();
    for (stream, piece) in [
        (OutputStream::Stderr, "stands still"),
        (OutputStream::Stdout, "given up"),
    ] {
        let kept = tokio::time::timeout(
            WHILE,
            broker.append_output(attempt_id, stream, piece.into()),
        )
        .await;
        held_up.push(kept.is_err());
    }
    let reader = clear(&pipe);
    broker
        .append_output(attempt_id, OutputStream::Stdout, b"kept".to_vec())
        .await
        .unwrap();
    assert_eq!(held_up, [true, true]);
    assert_eq!(
        broker
            .read_output(
                attempt_id.tid,
                attempt_id.attempt,
                OutputStream::Stdout,
                0,
                100
            )
            .await
            .unwrap(),
        b"kept"
    );
    drop(reader);
}

/// A worker gives a piece up after a while, and has another soon: each would take a thread, until there are no more for anything else.
#[tokio::test]
async fn output_that_waits_for_its_turn_takes_no_thread() {
    let (_directory, path) = place();
    let broker = open(&path).await;
    let attempt_id = begun(&broker).await;
    let pipe = obstruct(&path, attempt_id);
    let held_up = broker.append_output(attempt_id, OutputStream::Stderr, b"stands still".to_vec());
    assert!(tokio::time::timeout(WHILE, held_up).await.is_err());
    let threads = || fs::read_dir("/proc/self/task").unwrap().count();
    let before = threads();
    for _ in 0..20 {
        let waits = broker.append_output(attempt_id, OutputStream::Stdout, b"given up".to_vec());
        assert!(
            tokio::time::timeout(Duration::from_millis(10), waits)
                .await
                .is_err()
        );
    }
    let after = threads();
    let reader = clear(&pipe);
    broker
        .append_output(attempt_id, OutputStream::Stdout, b"kept".to_vec())
        .await
        .unwrap();
    assert_eq!(
        broker
            .read_output(
                attempt_id.tid,
                attempt_id.attempt,
                OutputStream::Stdout,
                0,
                100
            )
            .await
            .unwrap(),
        b"kept"
    );
    assert!(after < before + 10, "{before} threads have become {after}");
    drop(reader);
}
