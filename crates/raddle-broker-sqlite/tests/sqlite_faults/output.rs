//! Output while the database or the disk blocks.

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

use crate::{helper_process::HelperProcess, support::*};

/// Long enough for every call that is not blocked to finish, on a busy machine too.
const GRACE: Duration = Duration::from_secs(2);

async fn start_attempt(broker: &Sqlite) -> AttemptId {
    submit(broker, vec![spec("task")]).await.unwrap();
    let owner = worker(broker, TTL).await;
    broker.claim(request(owner, SOON)).await.unwrap()[0].attempt_id
}

/// A submitter that is stopped in a transaction holds the write lock.
#[tokio::test]
async fn stores_output_while_another_process_holds_the_write_lock() {
    let (_directory, path) = temp_database();
    let broker = open(&path).await;
    let attempt_id = start_attempt(&broker).await;
    let mut helper = HelperProcess::start("hold", &path);
    assert_eq!(helper.next_line().unwrap(), ["held"]);
    let mut waits = Box::pin(submit(&broker, vec![spec("later")]));
    assert!(
        tokio::time::timeout(GRACE, &mut waits).await.is_err(),
        "writes to the database block"
    );
    for piece in ["first ", "second"] {
        let kept = tokio::time::timeout(
            SOON / 4,
            broker.append_output(attempt_id, OutputStream::Stdout, piece.into()),
        )
        .await;
        kept.expect("output does not wait for the lock").unwrap();
    }
    helper.kill();
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
        b"first second"
    );
}

/// Replaces the file of a stream with a FIFO: opening it for writing blocks until there is a
/// reader.
fn block_output_file(path: &Path, attempt_id: AttemptId) -> PathBuf {
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

/// Opens the FIFO for reading, which unblocks the writer as long as the file is kept.
fn unblock(pipe: &Path) -> fs::File {
    fs::File::options()
        .read(true)
        .custom_flags(OFlags::NONBLOCK.bits() as i32)
        .open(pipe)
        .unwrap()
}

/// A dropped append must not be written after, or over, a later one.
#[tokio::test]
async fn output_is_written_in_order_or_not_at_all() {
    let (_directory, path) = temp_database();
    let broker = open(&path).await;
    let attempt_id = start_attempt(&broker).await;
    let pipe = block_output_file(&path, attempt_id);
    let mut held_up = Vec::new();
    for (stream, piece) in [
        (OutputStream::Stderr, "blocked"),
        (OutputStream::Stdout, "dropped"),
    ] {
        let kept = tokio::time::timeout(
            GRACE,
            broker.append_output(attempt_id, stream, piece.into()),
        )
        .await;
        held_up.push(kept.is_err());
    }
    let reader = unblock(&pipe);
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

/// A worker drops a blocked append and sends another. If each blocked a thread, the threads would
/// run out.
#[tokio::test]
async fn waiting_output_uses_no_thread() {
    let (_directory, path) = temp_database();
    let broker = open(&path).await;
    let attempt_id = start_attempt(&broker).await;
    let pipe = block_output_file(&path, attempt_id);
    let held_up = broker.append_output(attempt_id, OutputStream::Stderr, b"blocked".to_vec());
    assert!(tokio::time::timeout(GRACE, held_up).await.is_err());
    let threads = || fs::read_dir("/proc/self/task").unwrap().count();
    let before = threads();
    for _ in 0..20 {
        let waits = broker.append_output(attempt_id, OutputStream::Stdout, b"dropped".to_vec());
        assert!(
            tokio::time::timeout(Duration::from_millis(10), waits)
                .await
                .is_err()
        );
    }
    let after = threads();
    let reader = unblock(&pipe);
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
    assert!(after < before + 10, "{after} threads instead of {before}");
    drop(reader);
}
