//! Tests of local discovery.

use std::{
    io,
    os::unix::fs::{PermissionsExt, symlink},
    sync::Arc,
    time::Duration,
};

use tempfile::TempDir;

use super::*;
use crate::testing::{next, ready, soon, tagged, worker_at};

fn sample_worker() -> WorkerMetadata {
    worker_at("unix-abstract:x")
}

fn pools() -> (TempDir, LocalDiscovery) {
    let directory = tempfile::tempdir().unwrap();
    let discovery = LocalDiscovery::in_directory(directory.path().join("pools"), "test").unwrap();
    (directory, discovery)
}

/// A second discovery, as another process would make it.
fn reopen(discovery: &LocalDiscovery) -> LocalDiscovery {
    LocalDiscovery::in_directory(discovery.directory.path(), discovery.namespace()).unwrap()
}

async fn publish(discovery: &LocalDiscovery, event: DiscoveryEvent) {
    soon(discovery.publish(event)).await.unwrap();
}

async fn subscribe(discovery: &LocalDiscovery) -> Subscription {
    soon(discovery.subscribe(None)).await.unwrap()
}

/// The names of all files in the directory.
fn file_names(discovery: &LocalDiscovery) -> Vec<String> {
    let found = std::fs::read_dir(discovery.directory.path())
        .into_iter()
        .flatten()
        .flatten();
    let mut found: Vec<_> = found
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    found.sort();
    found
}

#[tokio::test]
async fn existing_workers_are_reported_without_waiting() {
    let (_pools, discovery) = pools();
    let workers = [sample_worker(), sample_worker()];
    for worker in &workers {
        publish(&discovery, DiscoveryEvent::Added(worker.clone())).await;
    }
    let mut subscription = subscribe(&reopen(&discovery)).await;
    assert_eq!(
        ready(&mut subscription),
        workers.clone().map(DiscoveryEvent::Added)
    );
    assert_eq!(reopen(&discovery).snapshot(), workers);
    for worker in workers {
        publish(&discovery, DiscoveryEvent::Dropped(worker)).await;
    }
    assert_eq!(file_names(&discovery), [""; 0]);
}

#[tokio::test]
async fn changes_are_reported() {
    let (_pools, discovery) = pools();
    let mut subscription = subscribe(&reopen(&discovery)).await;
    assert_eq!(ready(&mut subscription), []);
    assert_eq!(
        file_names(&discovery),
        [""; 0],
        "a subscriber leaves no file"
    );
    let worker = sample_worker();
    let changed = tagged(&worker, "gpu");
    for _ in 0..3 {
        publish(&discovery, DiscoveryEvent::Added(worker.clone())).await;
        assert_eq!(
            next(&mut subscription).await,
            DiscoveryEvent::Added(worker.clone())
        );
        publish(&discovery, DiscoveryEvent::Updated(changed.clone())).await;
        assert_eq!(
            next(&mut subscription).await,
            DiscoveryEvent::Updated(changed.clone())
        );
        publish(&discovery, DiscoveryEvent::Updated(changed.clone())).await;
        publish(&discovery, DiscoveryEvent::Dropped(worker.clone())).await;
        assert_eq!(
            next(&mut subscription).await,
            DiscoveryEvent::Dropped(changed.clone())
        );
        assert_eq!(file_names(&discovery), [""; 0]);
    }
    publish(&discovery, DiscoveryEvent::Dropped(worker)).await;
}

/// The kernel releases the lock of a killed process as it does that of a dropped discovery.
#[tokio::test]
async fn entries_of_a_killed_publisher_are_dropped_and_removed() {
    let (_pools, discovery) = pools();
    let (killed_worker, kept_worker) = (sample_worker(), sample_worker());
    let mut subscriptions = [
        subscribe(&reopen(&discovery)).await,
        subscribe(&reopen(&discovery)).await,
    ];
    let killed = reopen(&discovery);
    publish(&killed, DiscoveryEvent::Added(killed_worker.clone())).await;
    publish(&discovery, DiscoveryEvent::Added(kept_worker.clone())).await;
    for subscription in &mut subscriptions {
        let mut reported =
            [next(subscription).await, next(subscription).await].map(|event| match event {
                DiscoveryEvent::Added(worker) => worker.uid,
                other => panic!("{other:?}"),
            });
        reported.sort();
        assert_eq!(reported, [killed_worker.uid, kept_worker.uid]);
    }
    drop(killed);
    for subscription in &mut subscriptions {
        assert_eq!(
            next(subscription).await,
            DiscoveryEvent::Dropped(killed_worker.clone())
        );
    }
    assert_eq!(
        file_names(&discovery),
        [discovery.entry_name(kept_worker.uid)]
    );
    assert_eq!(reopen(&discovery).snapshot(), [kept_worker]);
}

#[tokio::test]
async fn entries_of_dead_publishers_are_removed_in_all_namespaces() {
    let (_pools, discovery) = pools();
    let [other, third] = ["other", "a.third"]
        .map(|name| LocalDiscovery::in_directory(discovery.directory.path(), name).unwrap());
    let killed = [reopen(&discovery), reopen(&other)];
    for publisher in &killed {
        publish(publisher, DiscoveryEvent::Added(sample_worker())).await;
    }
    drop(killed);
    let worker = sample_worker();
    assert_eq!(file_names(&discovery).len(), 2);
    publish(&third, DiscoveryEvent::Added(worker.clone())).await;
    assert_eq!(
        file_names(&discovery),
        [format!("a.third.{}.json", worker.uid)]
    );
    assert_eq!(
        LocalDiscovery::namespaces_in(discovery.directory.path()).unwrap(),
        ["a.third"]
    );
    assert_eq!(
        (discovery.snapshot(), third.snapshot()),
        (vec![], vec![worker])
    );
}

#[tokio::test]
async fn other_files_are_skipped() {
    let (_pools, discovery) = pools();
    let good = sample_worker();
    publish(&discovery, DiscoveryEvent::Added(good.clone())).await;
    let path = |name: &str| discovery.directory.path().join(name);
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(
        rustix::fs::CWD,
        path("pipe.json"),
        rustix::fs::FileType::Fifo,
        mode,
        0,
    )
    .unwrap();
    std::fs::create_dir(path(&discovery.entry_name(WorkerUid::new()))).unwrap();
    std::fs::write(path("README"), "?").unwrap();
    std::fs::write(path("x.json"), "{}").unwrap();
    let torn = std::fs::File::create(path(&discovery.entry_name(WorkerUid::new()))).unwrap();
    torn.lock().unwrap();
    assert_eq!(
        ready(&mut subscribe(&reopen(&discovery)).await),
        [DiscoveryEvent::Added(good.clone())]
    );
    assert_eq!(discovery.snapshot(), [good]);
}

#[tokio::test]
async fn directories_that_others_can_write_to_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let open = directory.path().join("open");
    std::fs::create_dir(&open).unwrap();
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o777)).unwrap();
    let real = directory.path().join("real");
    std::fs::create_dir(&real).unwrap();
    let link = directory.path().join("link");
    symlink(&real, &link).unwrap();
    for path in [open, link] {
        let discovery = LocalDiscovery::in_directory(&path, "test").unwrap();
        let error = discovery
            .publish(DiscoveryEvent::Added(sample_worker()))
            .await
            .unwrap_err();
        assert!(
            error.to_string().contains("cannot publish a worker ("),
            "{error}"
        );
        let Err(error) = discovery.subscribe(None).await else {
            panic!("{} was accepted", path.display())
        };
        assert!(
            error.to_string().contains("cannot watch for workers ("),
            "{error}"
        );
        assert!(LocalDiscovery::namespaces_in(&path).is_err());
        assert_eq!(discovery.snapshot(), []);
    }
    let discovery = LocalDiscovery::in_directory(directory.path().join("new"), "test").unwrap();
    publish(&discovery, DiscoveryEvent::Added(sample_worker())).await;
    assert_eq!(
        discovery
            .directory
            .path()
            .metadata()
            .unwrap()
            .permissions()
            .mode()
            & 0o777,
        0o700
    );
}

#[tokio::test]
async fn filter_reports_workers_that_start_or_stop_matching() {
    let (_pools, discovery) = pools();
    let (plain, other) = (sample_worker(), sample_worker());
    let fits = tagged(&plain, "gpu");
    publish(&discovery, DiscoveryEvent::Added(plain.clone())).await;
    let filter: WorkerFilter = Arc::new(|worker| worker.tags.contains("gpu"));
    let mut subscription = soon(discovery.subscribe(Some(filter))).await.unwrap();
    assert_eq!(ready(&mut subscription), []);
    publish(&discovery, DiscoveryEvent::Added(other)).await;
    publish(&discovery, DiscoveryEvent::Updated(fits.clone())).await;
    assert_eq!(
        next(&mut subscription).await,
        DiscoveryEvent::Added(fits.clone())
    );
    publish(&discovery, DiscoveryEvent::Updated(plain)).await;
    assert_eq!(next(&mut subscription).await, DiscoveryEvent::Dropped(fits));
}

#[tokio::test]
async fn hundred_concurrent_publications_are_all_reported() {
    let (_pools, discovery) = pools();
    let mut subscription = subscribe(&reopen(&discovery)).await;
    let workers: Vec<_> = (0..100).map(|_| sample_worker()).collect();
    let publishing = workers
        .iter()
        .map(|worker| discovery.publish(DiscoveryEvent::Added(worker.clone())));
    for outcome in soon(futures_util::future::join_all(publishing)).await {
        outcome.unwrap();
    }
    let mut reported = Vec::new();
    while reported.len() < workers.len() {
        let DiscoveryEvent::Added(worker) = next(&mut subscription).await else {
            panic!("expected an addition")
        };
        reported.push(worker);
    }
    reported.sort_by_key(|worker| worker.uid);
    assert_eq!(reported, workers);
    let dropping = workers
        .iter()
        .map(|worker| discovery.publish(DiscoveryEvent::Dropped(worker.clone())));
    soon(futures_util::future::join_all(dropping)).await;
    for _ in &workers {
        assert!(matches!(
            next(&mut subscription).await,
            DiscoveryEvent::Dropped(_)
        ));
    }
    assert_eq!(file_names(&discovery), [""; 0]);
}

#[tokio::test]
async fn cancelled_wait_loses_no_event() {
    let (_pools, discovery) = pools();
    let mut subscription = subscribe(&discovery).await;
    let worker = sample_worker();
    for event in [
        DiscoveryEvent::Added(worker.clone()),
        DiscoveryEvent::Dropped(worker),
    ] {
        assert!(
            tokio::time::timeout(Duration::from_millis(20), subscription.next())
                .await
                .is_err()
        );
        publish(&discovery, event.clone()).await;
        assert_eq!(next(&mut subscription).await, event);
    }
}

#[tokio::test]
async fn removed_directory_is_created_again() {
    let (_pools, discovery) = pools();
    let (first, second) = (sample_worker(), sample_worker());
    let mut subscription = subscribe(&discovery).await;
    publish(&discovery, DiscoveryEvent::Added(first.clone())).await;
    assert_eq!(
        next(&mut subscription).await,
        DiscoveryEvent::Added(first.clone())
    );
    std::fs::remove_dir_all(discovery.directory.path()).unwrap();
    assert_eq!(
        next(&mut subscription).await,
        DiscoveryEvent::Dropped(first)
    );
    publish(&discovery, DiscoveryEvent::Added(second.clone())).await;
    assert_eq!(next(&mut subscription).await, DiscoveryEvent::Added(second));
}

#[test]
fn namespaces_are_validated() {
    let directory = tempfile::tempdir().unwrap();
    let long = "x".repeat(65);
    for wrong in ["", ".", "..", ".x", "a/b", "../x", "a b", "ä", "a\0", &long] {
        let error = LocalDiscovery::in_directory(directory.path(), wrong).unwrap_err();
        assert_eq!(error.source.kind(), io::ErrorKind::InvalidInput, "{wrong}");
    }
    for right in ["a", "A.b_c-9", &long[1..]] {
        assert_eq!(
            LocalDiscovery::in_directory(directory.path(), right)
                .unwrap()
                .namespace(),
            right
        );
    }
    assert_eq!(
        LocalDiscovery::namespaces_in(directory.path().join("none")).unwrap(),
        [""; 0]
    );
}

#[tokio::test]
async fn publish_errors_name_the_cause() {
    let (_pools, discovery) = pools();
    let mut worker = sample_worker();
    worker.extra.insert("long".into(), "x".repeat(10_000));
    let error = discovery
        .publish(DiscoveryEvent::Added(worker))
        .await
        .unwrap_err();
    assert_eq!(error.source.kind(), io::ErrorKind::InvalidInput);
    assert_eq!(file_names(&discovery), [""; 0]);
    let nowhere = LocalDiscovery::in_directory("/nowhere/at/all", "test").unwrap();
    assert_eq!(
        nowhere
            .publish(DiscoveryEvent::Added(sample_worker()))
            .await
            .unwrap_err()
            .source
            .kind(),
        io::ErrorKind::NotFound
    );
}

#[tokio::test]
async fn removes_old_drafts_and_leaves_other_files_alone() {
    let (_pools, discovery) = pools();
    let directory = discovery.directory.path().to_owned();
    discovery.directory.make().unwrap();
    let (old, fresh) = (
        format!(".test.{}.json.draft", WorkerUid::new()),
        format!(".test.{}.json.draft", WorkerUid::new()),
    );
    for name in ["package.json", &old, &fresh] {
        std::fs::write(directory.join(name), "{}").unwrap();
    }
    let killed = std::time::SystemTime::now() - Duration::from_secs(3600);
    File::options()
        .write(true)
        .open(directory.join(&old))
        .unwrap()
        .set_modified(killed)
        .unwrap();
    let worker = sample_worker();
    publish(&discovery, DiscoveryEvent::Added(worker.clone())).await;
    assert_eq!(LocalDiscovery::namespaces_in(&directory).unwrap(), ["test"]);
    publish(&discovery, DiscoveryEvent::Dropped(worker)).await;
    assert_eq!(file_names(&discovery), [fresh, "package.json".into()]);
}
