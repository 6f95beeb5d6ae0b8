//! The socket file: private to its owner, and never created in place of another file.

use std::{
    fs,
    os::unix::{
        fs::{FileTypeExt, PermissionsExt, symlink},
        net::UnixListener,
    },
    path::{Path, PathBuf},
    sync::{Arc, Barrier},
    time::Duration,
};

use raddle_broker::Error;
use raddle_broker_remote::{BrokerServer, Remote};
use raddle_broker_sqlite::Sqlite;

use crate::support::*;

async fn bind(path: &Path) -> Result<BrokerServer, Error> {
    BrokerServer::bind(path, Arc::new(Sqlite::in_memory().await.unwrap())).await
}

async fn bind_error(path: &Path) -> String {
    let error = bind(path).await.err().unwrap();
    assert!(
        matches!(error, Error::Socket { .. }) && error.is_callers(),
        "{error}"
    );
    error.to_string()
}

fn temp_socket() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("agent.sock");
    (directory, path)
}

#[tokio::test]
async fn the_socket_is_private_and_removed_with_the_server() {
    let (directory, path) = temp_socket();
    let agent = bind(&path).await.unwrap();
    let found = fs::symlink_metadata(&path).unwrap();
    assert!(found.file_type().is_socket());
    assert_eq!(found.permissions().mode() & 0o777, 0o600);
    assert!(
        bind_error(&path)
            .await
            .contains("another process serves there")
    );
    drop(agent);
    assert_eq!(
        fs::read_dir(directory.path()).unwrap().count(),
        0,
        "no file is left"
    );
}

#[tokio::test]
async fn replaces_a_dead_socket() {
    let (_directory, path) = temp_socket();
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let error = Remote::connect(&path).await.err().unwrap();
    assert!(
        error.is_retryable() && error.to_string().contains("no process serves there"),
        "{error}"
    );
    let agent = bind(&path).await.unwrap();
    drop(agent);
    assert!(!path.exists());
}

#[tokio::test]
async fn a_replaced_server_leaves_the_new_socket() {
    let (_directory, path) = temp_socket();
    let first = bind(&path).await.unwrap();
    fs::remove_file(&path).unwrap();
    let second = bind(&path).await.unwrap();
    drop(first);
    assert!(path.exists());
    drop(second);
    assert!(!path.exists());
}

#[tokio::test]
async fn refuses_to_replace_other_files() {
    let (directory, path) = temp_socket();
    fs::write(&path, "precious").unwrap();
    assert!(bind_error(&path).await.contains("not a socket"));
    assert_eq!(fs::read_to_string(&path).unwrap(), "precious");

    for target in ["agent.sock", "absent", "dead.sock"] {
        let link = directory.path().join(format!("link-to-{target}"));
        symlink(directory.path().join(target), &link).unwrap();
        assert!(bind_error(&link).await.contains("not a socket"));
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    }
    assert!(
        !directory.path().join("absent").exists(),
        "a link is not followed"
    );
    let dead = directory.path().join("dead.sock");
    drop(UnixListener::bind(&dead).unwrap());
    let link = directory.path().join("link-to-dead.sock");
    assert!(bind_error(&link).await.contains("not a socket"));
    assert!(dead.exists());
    assert!(
        bind_error(&directory.path().join("no/such/directory.sock"))
            .await
            .contains("create it first")
    );
    assert!(bind_error(directory.path()).await.contains("not a socket"));
}

#[tokio::test]
async fn refuses_a_path_that_is_too_long() {
    let (directory, _) = temp_socket();
    let room = 107 - directory.path().as_os_str().len() - 1;
    let longest = directory.path().join("x".repeat(room));
    drop(bind(&longest).await.unwrap());
    let longer = directory.path().join("x".repeat(room + 1));
    assert!(
        bind_error(&longer)
            .await
            .contains("has 108 bytes, more than the 107 of a socket")
    );
    let error = Remote::connect(&longer).await.err().unwrap();
    assert!(
        matches!(error, Error::AgentRefused { .. }) && error.to_string().contains("107"),
        "{error}"
    );
}

/// The directory lock closes the race between finding a dead socket and replacing it.
#[tokio::test]
async fn a_server_waits_for_the_directory_lock() {
    let (directory, path) = temp_socket();
    drop(UnixListener::bind(&path).unwrap());
    let lock = fs::File::open(directory.path()).unwrap();
    lock.lock().unwrap();
    let mut binding = std::pin::pin!(bind(&path));
    assert!(
        tokio::time::timeout(Duration::from_millis(50), &mut binding)
            .await
            .is_err()
    );
    // The other server has replaced the same dead socket.
    fs::remove_file(&path).unwrap();
    let other = UnixListener::bind(&path).unwrap();
    drop(lock);
    let error = tokio::time::timeout(SOON, binding)
        .await
        .unwrap()
        .err()
        .unwrap();
    assert!(
        error.to_string().contains("another process serves there"),
        "{error}"
    );
    drop(other);
}

#[tokio::test]
async fn reports_a_directory_that_stays_locked() {
    let (directory, path) = temp_socket();
    let lock = fs::File::open(directory.path()).unwrap();
    lock.lock().unwrap();
    assert!(
        bind_error(&path)
            .await
            .contains("keeps its directory locked")
    );
}

#[test]
fn one_of_many_concurrent_servers_serves() {
    const SERVERS: usize = 8;
    for round in 0..10 {
        let (_directory, path) = temp_socket();
        if round % 2 == 0 {
            drop(UnixListener::bind(&path).unwrap());
        }
        let (start, tried) = (
            Arc::new(Barrier::new(SERVERS)),
            Arc::new(Barrier::new(SERVERS)),
        );
        let serve = || {
            let (path, start, tried) = (path.clone(), Arc::clone(&start), Arc::clone(&tried));
            std::thread::spawn(move || {
                runtime().block_on(async {
                    start.wait();
                    let agent = bind(&path).await;
                    tried.wait();
                    agent.is_ok()
                })
            })
        };
        let threads: Vec<_> = (0..SERVERS).map(|_| serve()).collect();
        let serving = threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .filter(|ok| *ok)
            .count();
        assert_eq!(serving, 1);
        assert!(!path.exists());
    }
}
