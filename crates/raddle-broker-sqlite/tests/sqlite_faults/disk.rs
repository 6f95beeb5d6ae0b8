//! A full disk refuses new data and keeps what is stored.

use std::{fs, io::Write, os::unix::process::ExitStatusExt, path::Path, process::Command};

use raddle_broker::{Error, Output, OutputStream, Queries, Tasks};
use raddle_broker_sqlite::Sqlite;
use raddle_model::TaskSpec;

use crate::{helper_process::HelperProcess, support::*};

/// A small file system.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    /// Returns `None` where this process may not mount.
    fn mount() -> Option<Self> {
        Self::mount_by(r#"mount -t tmpfs -o size=6m raddle-test "$0""#)
    }

    /// Blocks are smaller than memory pages, as `mkfs` makes them for small disks.
    fn mount_with_small_blocks(kind: &str) -> Option<Self> {
        Self::mount_by(&format!(
            r#"image=$(mktemp) && truncate -s 4m "$image" && mkfs.{kind} -q -b 1024 -m 0 "$image" && mount -o loop "$image" "$0"
               code=$?; rm "$image"; exit $code"#,
        ))
    }

    fn mount_by(script: &str) -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let mut mount = Command::new("sh");
        mount
            .args(["-c", script])
            .arg(directory.path())
            .stderr(std::process::Stdio::null());
        let mounted = mount.status().is_ok_and(|status| status.success());
        if !mounted {
            raddle_testnet::skip("only root can mount a small disk: run the tests as root");
        }
        mounted.then_some(Self(directory))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Fills the disk. Returns the file to remove to free the space.
    fn fill(&self) -> std::path::PathBuf {
        let ballast = self.path().join("ballast");
        let mut file = fs::File::create(&ballast).unwrap();
        for size in [64 * 1024, 4096, 1] {
            while file.write_all(&vec![0; size]).is_ok() {}
        }
        ballast
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: the threads of a dropped handle close their files a moment later.
        let _ = Command::new("umount")
            .arg("--lazy")
            .arg(self.path())
            .status();
    }
}

fn large(name: &str) -> TaskSpec {
    TaskSpec {
        stdin: Some("x".repeat(20_000)),
        ..spec(name)
    }
}

#[tokio::test]
async fn accepted_tasks_survive_a_full_disk() {
    let Some(disk) = SmallDisk::mount() else {
        return;
    };
    let path = disk.path().join("broker.db");
    let broker = open(&path).await;
    let ballast = disk.path().join("ballast");
    fs::write(&ballast, vec![0; 2 * 1024 * 1024]).unwrap();
    let mut accepted = Vec::new();
    let error = loop {
        match submit(&broker, vec![large("a"), large("b"), large("c")]).await {
            Ok(tids) => accepted.extend(tids),
            Err(error) => break error,
        }
        assert!(accepted.len() < 3000, "the disk never fills");
    };
    assert!(
        matches!(&error, Error::Full { path: named } if *named == path),
        "{error:?}"
    );
    assert!(error.is_retryable());
    assert!(!accepted.is_empty());
    let stored_tids_of = async |broker: &Sqlite| {
        stored(broker)
            .await
            .into_iter()
            .map(|(tid, _)| tid)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        stored_tids_of(&broker).await,
        accepted,
        "exactly the accepted tasks are stored while the disk is full"
    );

    fs::remove_file(&ballast).unwrap();
    let more = submit(&broker, vec![large("d")]).await.unwrap();
    accepted.extend(more);
    let again = open(&path).await;
    assert_eq!(stored_tids_of(&again).await, accepted);
    let owner = worker(&again, TTL).await;
    let claim = again.claim(request(owner, SOON)).await.unwrap().remove(0);
    again
        .complete(vec![success(claim.attempt_id)])
        .await
        .unwrap();
    assert_sound(&again).await;
}

#[tokio::test]
async fn a_completion_can_be_repeated_after_a_full_disk() {
    let Some(disk) = SmallDisk::mount() else {
        return;
    };
    let broker = open(&disk.path().join("broker.db")).await;
    submit(&broker, vec![spec("task")]).await.unwrap();
    let owner = worker(&broker, TTL).await;
    let attempt_id = broker.claim(request(owner, SOON)).await.unwrap()[0].attempt_id;
    let ballast = disk.fill();
    let mut finish = success(attempt_id);
    finish.stdout = vec![b'x'; 500_000];
    finish.report.stdout_bytes = 500_000;
    let refused = broker.complete(vec![finish.clone()]).await;
    assert!(matches!(refused, Err(Error::Full { .. })), "{refused:?}");
    let refused = broker
        .append_output(attempt_id, OutputStream::Stderr, vec![b'x'; 500_000])
        .await;
    assert!(matches!(refused, Err(Error::Full { .. })), "{refused:?}");
    fs::remove_file(ballast).unwrap();
    let outcome = broker.complete(vec![finish]).await.unwrap();
    assert_eq!(
        outcome,
        [raddle_broker::CompletionOutcome::Finished(
            raddle_model::TaskState::Completed
        )]
    );
    assert_eq!(
        broker
            .read_output(
                attempt_id.tid,
                attempt_id.attempt,
                OutputStream::Stdout,
                0,
                1_000_000
            )
            .await
            .unwrap()
            .len(),
        500_000
    );
}

/// A partial append must not be stored twice.
#[tokio::test]
async fn output_is_not_duplicated_after_a_full_disk() {
    let Some(disk) = SmallDisk::mount() else {
        return;
    };
    let broker = open(&disk.path().join("broker.db")).await;
    submit(&broker, vec![spec("task")]).await.unwrap();
    let owner = worker(&broker, TTL).await;
    let attempt_id = broker.claim(request(owner, SOON)).await.unwrap()[0].attempt_id;
    broker
        .append_output(attempt_id, OutputStream::Stdout, b"begin ".to_vec())
        .await
        .unwrap();
    let ballast = disk.fill();
    let middle = vec![b'm'; 100_000];
    let refused = broker
        .append_output(attempt_id, OutputStream::Stdout, middle.clone())
        .await;
    assert!(matches!(refused, Err(Error::Full { .. })), "{refused:?}");
    fs::remove_file(&ballast).unwrap();
    broker
        .append_output(attempt_id, OutputStream::Stdout, middle.clone())
        .await
        .unwrap();

    let ballast = disk.fill();
    let mut finish = success(attempt_id);
    finish.stdout = vec![b'e'; 100_000];
    finish.report.stdout_bytes = 200_006;
    let refused = broker.complete(vec![finish.clone()]).await;
    assert!(matches!(refused, Err(Error::Full { .. })), "{refused:?}");
    fs::remove_file(ballast).unwrap();
    broker.complete(vec![finish.clone()]).await.unwrap();
    let output = broker
        .read_output(
            attempt_id.tid,
            attempt_id.attempt,
            OutputStream::Stdout,
            0,
            1_000_000,
        )
        .await
        .unwrap();
    assert!(
        output == [b"begin ", &middle[..], &finish.stdout].concat(),
        "{} bytes",
        output.len()
    );
}

#[tokio::test]
async fn refuses_a_new_database_on_a_full_disk() {
    let Some(disk) = SmallDisk::mount() else {
        return;
    };
    let ballast = disk.fill();
    let path = disk.path().join("broker.db");
    let error = Sqlite::open(&path).await.err().expect("the disk is full");
    assert!(matches!(error, Error::Full { .. }), "{error:?}");
    let remaining = fs::read_dir(disk.path())
        .unwrap()
        .map(|entry| entry.unwrap());
    let remaining: Vec<_> = remaining
        .filter(|entry| entry.metadata().unwrap().len() > 0)
        .map(|entry| entry.file_name())
        .collect();
    assert_eq!(remaining, ["ballast"], "no partial database is left");
    fs::remove_file(ballast).unwrap();
    submit(&open(&path).await, vec![spec("task")])
        .await
        .unwrap();
}

/// A database that was copied without the file beside it.
#[tokio::test]
async fn reports_a_full_disk_when_opening_a_database() {
    let Some(disk) = SmallDisk::mount() else {
        return;
    };
    let path = disk.path().join("broker.db");
    drop(open(&path).await);
    fs::remove_file(disk.path().join("broker.db-state")).unwrap();
    let _ballast = disk.fill();
    let error = Sqlite::open(&path).await.err().expect("the disk is full");
    assert!(matches!(error, Error::Full { .. }), "{error:?}");
}

/// SQLite maps the shared-memory file, and a fault without a free block would be a SIGBUS.
#[tokio::test]
async fn survives_a_nearly_full_disk() {
    open_on_a_full_disk("ext4").await;
}

/// ext2 has no `fallocate`.
#[tokio::test]
async fn survives_a_nearly_full_disk_without_fallocate() {
    open_on_a_full_disk("ext2").await;
}

async fn open_on_a_full_disk(kind: &str) {
    let Some(disk) = SmallDisk::mount_with_small_blocks(kind) else {
        return;
    };
    let path = disk.path().join("broker.db");
    drop(open(&path).await);
    let mut refused = 0;
    for free in (0..100).step_by(4) {
        let ballast = disk.fill();
        let taken = fs::metadata(&ballast).unwrap().len();
        fs::OpenOptions::new()
            .write(true)
            .open(&ballast)
            .unwrap()
            .set_len(taken - free * 1024)
            .unwrap();
        let mut other = HelperProcess::start("open", &path);
        other.next_line().unwrap();
        other.resume();
        let is_stored = other.next_line().is_some();
        refused += usize::from(!is_stored);
        let ended = other.wait();
        assert!(ended.signal().is_none(), "with {free} KiB: {ended}");
        fs::remove_file(ballast).unwrap();
    }
    assert!(refused > 0 && refused < 25, "{refused} of 25 were refused");
    assert_sound(&open(&path).await).await;
}
