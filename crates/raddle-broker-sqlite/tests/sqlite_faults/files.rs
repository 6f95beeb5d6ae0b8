//! Files that are no Raddle database are refused and left unchanged.

use std::{
    fs,
    os::unix::fs::{FileExt, FileTypeExt},
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use raddle_broker::{Error, Messages, Queries};
use raddle_broker_sqlite::Sqlite;
use raddle_model::TaskSpec;

use crate::support::*;

/// Opens the file and submits a task, which must fail. Damage may not show before the submit.
async fn open_error(path: &Path) -> Error {
    let before = fs::read(path).unwrap();
    let outcome = match Sqlite::open(path).await {
        Ok(broker) => submit(&broker, vec![spec("task")]).await.map(drop),
        Err(error) => Err(error),
    };
    assert!(
        fs::read(path).unwrap() == before,
        "the file is left as it is"
    );
    let error = outcome.expect_err("the file is refused");
    assert!(
        error.to_string().contains(path.to_str().unwrap()),
        "the file is named: {error}"
    );
    error
}

/// A Raddle database with enough pages to be damaged, checkpointed into the main file.
async fn database(path: &Path) {
    let broker = open(path).await;
    submit(
        &broker,
        (0..500).map(|n| spec(&format!("task-{n}"))).collect(),
    )
    .await
    .unwrap();
    drop(broker);
    let sqlite = rusqlite::Connection::open(path).unwrap();
    sqlite
        .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
        .unwrap();
}

#[tokio::test]
async fn refuses_a_text_file() {
    let (_directory, path) = temp_database();
    fs::write(&path, "dear diary, ".repeat(1000)).unwrap();
    let error = open_error(&path).await;
    assert!(
        matches!(&error, Error::Foreign { path: named, .. } if *named == path),
        "{error:?}"
    );
    assert!(files_beside(&path).is_empty(), "{:?}", files_beside(&path));
}

#[tokio::test]
async fn refuses_a_short_file() {
    let (_directory, path) = temp_database();
    fs::write(&path, "x").unwrap();
    let error = open_error(&path).await;
    assert!(matches!(error, Error::Foreign { .. }), "{error:?}");
}

#[tokio::test]
async fn refuses_a_database_of_another_program() {
    let (_directory, path) = temp_database();
    let other = rusqlite::Connection::open(&path).unwrap();
    other
        .execute_batch("CREATE TABLE diary (day TEXT); INSERT INTO diary VALUES ('monday');")
        .unwrap();
    drop(other);
    let error = open_error(&path).await;
    assert!(matches!(error, Error::Foreign { .. }), "{error:?}");
    assert!(files_beside(&path).is_empty(), "{:?}", files_beside(&path));
}

#[tokio::test]
async fn refuses_a_directory() {
    let (directory, _) = temp_database();
    let inside = directory.path().join("precious");
    fs::write(&inside, "x").unwrap();
    let error = Sqlite::open(directory.path())
        .await
        .err()
        .expect("a directory is refused");
    assert!(
        matches!(&error, Error::Foreign { path, .. } if path == directory.path()),
        "{error:?}"
    );
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
}

/// The error for a database with this format number.
async fn refusal_of_format(format: u32) -> Error {
    let (_directory, path) = temp_database();
    database(&path).await;
    let sqlite = rusqlite::Connection::open(&path).unwrap();
    sqlite.pragma_update(None, "user_version", format).unwrap();
    sqlite
        .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
        .unwrap();
    drop(sqlite);
    open_error(&path).await
}

#[tokio::test]
async fn refuses_unknown_formats() {
    let error = refusal_of_format(99).await;
    assert!(matches!(error, Error::Newer { found: 99, .. }), "{error:?}");
    let error = refusal_of_format(1).await;
    assert!(
        matches!(&error, Error::Foreign { found, .. } if found.contains("format 1")),
        "{error:?}"
    );
}

#[tokio::test]
async fn reports_damaged_pages_as_corrupt() {
    let (_directory, path) = temp_database();
    database(&path).await;
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    // Everything but the header on the first page.
    let length = file.metadata().unwrap().len();
    file.write_all_at(&vec![0xa5; usize::try_from(length).unwrap() - 100], 100)
        .unwrap();
    let error = open_error(&path).await;
    assert!(matches!(error, Error::Corrupt { .. }), "{error:?}");
}

#[tokio::test]
async fn reports_a_truncated_file_as_corrupt() {
    let (_directory, path) = temp_database();
    database(&path).await;
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(file.metadata().unwrap().len() / 2 / 4096 * 4096)
        .unwrap();
    let error = open_error(&path).await;
    assert!(matches!(error, Error::Corrupt { .. }), "{error:?}");
}

#[tokio::test]
async fn refuses_a_destroyed_header() {
    let (_directory, path) = temp_database();
    database(&path).await;
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&[0; 16], 0).unwrap();
    let error = open_error(&path).await;
    assert!(matches!(error, Error::Foreign { .. }), "{error:?}");
}

/// `mktemp` creates the file first.
#[tokio::test]
async fn an_empty_file_becomes_a_database() {
    let (_directory, path) = temp_database();
    fs::write(&path, "").unwrap();
    let broker = open(&path).await;
    submit(&broker, vec![spec("task")]).await.unwrap();
    assert_eq!(stored(&broker).await.len(), 1);
}

#[tokio::test]
async fn reports_a_missing_directory() {
    let (directory, _) = temp_database();
    let path = directory.path().join("no/such/broker.db");
    let error = Sqlite::open(&path).await.err().expect("it is refused");
    assert!(matches!(error, Error::ReadOnly { .. }), "{error:?}");
    assert!(error.to_string().contains("no/such"), "{error}");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn accepts_unusual_file_names() {
    let (directory, _) = temp_database();
    for name in ["a?b#c%20d.db", "mit Leerzeichen & 'so'.db", "file:x"] {
        let path = directory.path().join(name);
        submit(&open(&path).await, vec![spec("task")])
            .await
            .unwrap();
        let again = open(&path).await;
        again
            .put("jobs".parse().unwrap(), vec!["x".into()])
            .await
            .unwrap();
        assert_eq!(again.summary().await.unwrap().ready["default"], 1);
    }
}

/// A process that is killed during a checkpoint leaves a main file whose first page refers to pages
/// that are only in the WAL. SQLite recovers by itself.
#[tokio::test]
async fn recovers_from_an_interrupted_checkpoint() {
    let (directory, path) = temp_database();
    let broker = open(&path).await;
    let tids = submit(
        &broker,
        (0..500).map(|n| spec(&format!("task-{n}"))).collect(),
    )
    .await
    .unwrap();
    let copy = directory.path().join("copy.db");
    fs::copy(&path, &copy).unwrap();
    fs::copy(with_suffix(&path, "-wal"), with_suffix(&copy, "-wal")).unwrap();
    let sqlite = rusqlite::Connection::open(&path).unwrap();
    sqlite
        .query_row("PRAGMA wal_checkpoint(FULL)", [], |_| Ok(()))
        .unwrap();
    let mut first = vec![0; 4096];
    fs::File::open(&path)
        .unwrap()
        .read_exact_at(&mut first, 0)
        .unwrap();
    fs::OpenOptions::new()
        .write(true)
        .open(&copy)
        .unwrap()
        .write_all_at(&first, 0)
        .unwrap();
    let copied = open(&copy).await;
    assert_eq!(
        stored(&copied)
            .await
            .into_iter()
            .map(|(tid, _)| tid)
            .collect::<Vec<_>>(),
        tids
    );
}

/// A process that is killed while it creates the database leaves a draft, and the next one starts
/// again.
#[tokio::test]
async fn ignores_a_leftover_draft() {
    let (_directory, path) = temp_database();
    let leftover = ["-new", "-new-wal", "-new-shm"].map(|suffix| with_suffix(&path, suffix));
    leftover
        .iter()
        .for_each(|leftover| fs::write(leftover, "SQLite format 3\0 and no more").unwrap());
    let broker = open(&path).await;
    submit(&broker, vec![spec("task")]).await.unwrap();
    assert_sound(&broker).await;
    assert!(leftover.iter().all(|leftover| !leftover.exists()));
}

/// SQLite would apply the old WAL to an empty database.
#[tokio::test]
async fn refuses_a_wal_without_its_database() {
    let (directory, path) = temp_database();
    database(&path).await;
    submit(&open(&path).await, vec![spec("after the checkpoint")])
        .await
        .unwrap();
    let away = directory.path().join("away.db");
    fs::rename(&path, &away).unwrap();
    let leftover =
        || ["-wal", "-shm", "-new"].map(|suffix| fs::read(with_suffix(&path, suffix)).ok());
    let before = leftover();
    // With and without an empty file in its place.
    for in_its_place in [None, Some("")] {
        in_its_place
            .iter()
            .for_each(|content| fs::write(&path, content).unwrap());
        let error = Sqlite::open(&path).await.err().expect("it is refused");
        assert!(
            matches!(&error, Error::LogAlone { path: named } if *named == path),
            "{error:?}"
        );
    }
    assert!(leftover() == before, "all files are unchanged");

    fs::rename(&away, &path).unwrap();
    let broker = open(&path).await;
    assert_eq!(stored(&broker).await.len(), 501);
    assert_sound(&broker).await;
    drop(broker);
    for suffix in ["", "-wal", "-shm"] {
        fs::remove_file(with_suffix(&path, suffix)).unwrap();
    }
    assert_eq!(stored(&open(&path).await).await.len(), 0);
}

/// Creating the database in place of the symlink would leave its target missing.
#[tokio::test]
async fn refuses_a_dangling_symlink() {
    let (directory, path) = temp_database();
    std::os::unix::fs::symlink(directory.path().join("elsewhere.db"), &path).unwrap();
    let error = Sqlite::open(&path).await.err().expect("it is refused");
    assert!(
        error
            .to_string()
            .contains("a link to a file that does not exist"),
        "{error}"
    );
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
}

/// All of them have a length of zero, like an empty file.
#[tokio::test]
async fn refuses_fifos_and_sockets() {
    let (directory, path) = temp_database();
    let fifo = Command::new("mkfifo").arg(&path).status().unwrap();
    assert!(fifo.success());
    let kept = |path: &Path| fs::symlink_metadata(path).unwrap().file_type();
    let error = Sqlite::open(&path).await.err().expect("a FIFO is refused");
    assert!(
        matches!(&error, Error::Foreign { found, .. } if found == "it is a FIFO"),
        "{error:?}"
    );
    assert!(kept(&path).is_fifo());

    let socket = directory.path().join("socket.db");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let error = Sqlite::open(&socket)
        .await
        .err()
        .expect("a socket is refused");
    assert!(
        matches!(&error, Error::Foreign { found, .. } if found == "it is a socket"),
        "{error:?}"
    );
    assert!(kept(&socket).is_socket());

    let link = directory.path().join("link.db");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    let error = Sqlite::open(&link)
        .await
        .err()
        .expect("a link to a FIFO is refused");
    assert!(matches!(error, Error::Foreign { .. }), "{error:?}");
    assert!(kept(&link).is_symlink() && kept(&path).is_fifo());
    assert_eq!(
        fs::read_dir(directory.path()).unwrap().count(),
        3,
        "no file was created"
    );
}

/// Processes that open the link and the path must use the same database and locks.
#[tokio::test]
async fn follows_a_symlink_to_the_database() {
    for content in [None, Some("")] {
        let (directory, path) = temp_database();
        match content {
            None => drop(open(&path).await),
            Some(content) => fs::write(&path, content).unwrap(),
        }
        fs::create_dir(directory.path().join("elsewhere")).unwrap();
        let link = directory.path().join("elsewhere/link.db");
        std::os::unix::fs::symlink("../broker.db", &link).unwrap();
        let by_link = open(&link).await;
        submit(&by_link, vec![spec("task")]).await.unwrap();
        assert_eq!(stored(&open(&path).await).await.len(), 1);
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert!(files_beside(&link).is_empty(), "{:?}", files_beside(&link));
    }
}

#[tokio::test]
async fn refuses_a_database_without_tables() {
    let (_directory, path) = temp_database();
    let sqlite = rusqlite::Connection::open(&path).unwrap();
    sqlite
        .pragma_update(None, "application_id", 0x5244_444c)
        .unwrap();
    drop(sqlite);
    let error = Sqlite::open(&path).await.err().expect("it is refused");
    assert!(
        error.to_string().contains("a database without tables"),
        "{error}"
    );
}

/// A long reader must not block a process that closes the database.
#[tokio::test]
async fn closing_does_not_wait_for_readers() {
    let (_directory, path) = temp_database();
    let broker = open(&path).await;
    let large = TaskSpec {
        stdin: Some("x".repeat(2_000_000)),
        ..spec("large")
    };
    submit(&broker, vec![large]).await.unwrap();
    let reader = rusqlite::Connection::open(&path).unwrap();
    reader
        .execute_batch("BEGIN; SELECT count(*) FROM tasks;")
        .unwrap();
    submit(&broker, vec![spec("after")]).await.unwrap();
    let began = Instant::now();
    tokio::task::spawn_blocking(move || drop(broker))
        .await
        .unwrap();
    assert!(
        began.elapsed() < Duration::from_secs(3),
        "{:?}",
        began.elapsed()
    );
}

fn files_beside(path: &Path) -> Vec<PathBuf> {
    let all = fs::read_dir(path.parent().unwrap())
        .unwrap()
        .map(|entry| entry.unwrap().path());
    all.filter(|found| found != path).collect()
}
