//! Files that are no database of ours are named, and left as they are.

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

/// Opens the file and does something with it. Damage need not show before that.
async fn refusal(path: &Path) -> Error {
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

/// A database of ours with enough in it to be damaged, all of it in the file itself.
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
async fn a_text_file_is_foreign() {
    let (_directory, path) = place();
    fs::write(&path, "dear diary, ".repeat(1000)).unwrap();
    let error = refusal(&path).await;
    assert!(
        matches!(&error, Error::Foreign { path: named, .. } if *named == path),
        "{error:?}"
    );
    assert!(files_beside(&path).is_empty(), "{:?}", files_beside(&path));
}

#[tokio::test]
async fn a_short_file_is_foreign() {
    let (_directory, path) = place();
    fs::write(&path, "x").unwrap();
    let error = refusal(&path).await;
    assert!(matches!(error, Error::Foreign { .. }), "{error:?}");
}

#[tokio::test]
async fn another_programs_database_is_foreign() {
    let (_directory, path) = place();
    let other = rusqlite::Connection::open(&path).unwrap();
    other
        .execute_batch("CREATE TABLE diary (day TEXT); INSERT INTO diary VALUES ('monday');")
        .unwrap();
    drop(other);
    let error = refusal(&path).await;
    assert!(matches!(error, Error::Foreign { .. }), "{error:?}");
    assert!(files_beside(&path).is_empty(), "{:?}", files_beside(&path));
}

#[tokio::test]
async fn a_directory_is_foreign() {
    let (directory, _) = place();
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

/// What opening a database says whose format is replaced by this one.
async fn refusal_of_format(format: u32) -> Error {
    let (_directory, path) = place();
    database(&path).await;
    let sqlite = rusqlite::Connection::open(&path).unwrap();
    sqlite.pragma_update(None, "user_version", format).unwrap();
    sqlite
        .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
        .unwrap();
    drop(sqlite);
    refusal(&path).await
}

#[tokio::test]
async fn refuses_formats_that_it_does_not_know() {
    let error = refusal_of_format(99).await;
    assert!(matches!(error, Error::Newer { found: 99, .. }), "{error:?}");
    let error = refusal_of_format(1).await;
    assert!(
        matches!(&error, Error::Foreign { found, .. } if found.contains("format 1")),
        "{error:?}"
    );
}

#[tokio::test]
async fn damaged_pages_are_corrupt() {
    let (_directory, path) = place();
    database(&path).await;
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    // All but the header on the first page.
    let length = file.metadata().unwrap().len();
    file.write_all_at(&vec![0xa5; usize::try_from(length).unwrap() - 100], 100)
        .unwrap();
    let error = refusal(&path).await;
    assert!(matches!(error, Error::Corrupt { .. }), "{error:?}");
}

#[tokio::test]
async fn a_truncated_file_is_corrupt() {
    let (_directory, path) = place();
    database(&path).await;
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(file.metadata().unwrap().len() / 2 / 4096 * 4096)
        .unwrap();
    let error = refusal(&path).await;
    assert!(matches!(error, Error::Corrupt { .. }), "{error:?}");
}

#[tokio::test]
async fn a_destroyed_header_is_foreign() {
    let (_directory, path) = place();
    database(&path).await;
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&[0; 16], 0).unwrap();
    let error = refusal(&path).await;
    assert!(matches!(error, Error::Foreign { .. }), "{error:?}");
}

/// `mktemp` and the like make the file first.
#[tokio::test]
async fn an_empty_file_becomes_a_database() {
    let (_directory, path) = place();
    fs::write(&path, "").unwrap();
    let broker = open(&path).await;
    submit(&broker, vec![spec("task")]).await.unwrap();
    assert_eq!(stored(&broker).await.len(), 1);
}

#[tokio::test]
async fn a_directory_that_is_not_there_is_named() {
    let (directory, _) = place();
    let path = directory.path().join("no/such/broker.db");
    let error = Sqlite::open(&path).await.err().expect("it is not made");
    assert!(matches!(error, Error::ReadOnly { .. }), "{error:?}");
    assert!(error.to_string().contains("no/such"), "{error}");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn odd_names_are_names() {
    let (directory, _) = place();
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

/// A process that is killed while it moves the log into the database leaves a file whose first page knows of pages that are only
/// in the log. SQLite makes that good by itself, if it is let.
#[tokio::test]
async fn a_checkpoint_cut_short_is_no_damage() {
    let (directory, path) = place();
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

/// A process that is killed while it makes the database leaves a draft, and the next begins anew.
#[tokio::test]
async fn a_draft_left_behind_is_no_obstacle() {
    let (_directory, path) = place();
    let left = ["-new", "-new-wal", "-new-shm"].map(|suffix| with_suffix(&path, suffix));
    left.iter()
        .for_each(|left| fs::write(left, "SQLite format 3\0 and no more").unwrap());
    let broker = open(&path).await;
    submit(&broker, vec![spec("task")]).await.unwrap();
    assert_sound(&broker).await;
    assert!(left.iter().all(|left| !left.exists()));
}

/// Its log would be laid over an empty one, which is not what it was written to.
#[tokio::test]
async fn a_deleted_database_does_not_meet_its_old_log() {
    let (directory, path) = place();
    database(&path).await;
    submit(&open(&path).await, vec![spec("after the checkpoint")])
        .await
        .unwrap();
    let away = directory.path().join("away.db");
    fs::rename(&path, &away).unwrap();
    // The page says who has had the lock.
    let left = || ["-wal", "-shm", "-new"].map(|suffix| fs::read(with_suffix(&path, suffix)).ok());
    let before = left();
    // An empty file in its place changes nothing.
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
    assert!(left() == before, "all is left as it is");

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

/// Putting the new file in the place of the link would leave the one it was meant for unmade.
#[tokio::test]
async fn a_link_to_nothing_is_refused() {
    let (directory, path) = place();
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

/// All of them have a length of zero, as an empty file has, and none of them is one.
#[tokio::test]
async fn what_is_no_file_is_refused_and_stays() {
    let (directory, path) = place();
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
        "nothing was made beside them"
    );
}

/// Whoever comes by the link and whoever comes by the name have to meet, and to find what the other left.
#[tokio::test]
async fn a_link_leads_to_the_database() {
    for content in [None, Some("")] {
        let (directory, path) = place();
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
async fn a_database_without_tables_is_refused() {
    let (_directory, path) = place();
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

/// Somebody who reads for long must not hold up those who leave.
#[tokio::test]
async fn leaving_does_not_wait_for_readers() {
    let (_directory, path) = place();
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
