//! Workers that are published, heard of, and killed.

use std::{
    io,
    os::unix::fs::{PermissionsExt, symlink},
    sync::Arc,
    time::Duration,
};

use tempfile::TempDir;

use super::*;
use crate::testing::{at, next, ready, soon, tagged};

fn own() -> WorkerMetadata {
    at("unix-abstract:x")
}

fn pools() -> (TempDir, LocalDiscovery) {
    let directory = tempfile::tempdir().unwrap();
    let discovery = LocalDiscovery::in_directory(directory.path().join("pools"), "test").unwrap();
    (directory, discovery)
}

/// The same, as another process would have it.
fn again(discovery: &LocalDiscovery) -> LocalDiscovery {
    LocalDiscovery::in_directory(discovery.directory.path(), discovery.namespace()).unwrap()
}

async fn publish(discovery: &LocalDiscovery, event: DiscoveryEvent) {
    soon(discovery.publish(event)).await.unwrap();
}

async fn subscribe(discovery: &LocalDiscovery) -> Subscription {
    soon(discovery.subscribe(None)).await.unwrap()
}

/// The names of all files in the directory.
fn left(discovery: &LocalDiscovery) -> Vec<String> {
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
async fn what_is_there_is_told_without_waiting() {
    let (_pools, discovery) = pools();
    let workers = [own(), own()];
    for worker in &workers {
        publish(&discovery, DiscoveryEvent::Added(worker.clone())).await;
    }
    let mut subscription = subscribe(&again(&discovery)).await;
    assert_eq!(
        ready(&mut subscription),
        workers.clone().map(DiscoveryEvent::Added)
    );
    assert_eq!(again(&discovery).snapshot(), workers);
    for worker in workers {
        publish(&discovery, DiscoveryEvent::Dropped(worker)).await;
    }
    assert_eq!(left(&discovery), [""; 0]);
}

#[tokio::test]
async fn what_happens_is_told_as_it_happens() {
    let (_pools, discovery) = pools();
    let mut subscription = subscribe(&again(&discovery)).await;
    assert_eq!(ready(&mut subscription), []);
    assert_eq!(left(&discovery), [""; 0], "who listens leaves no trace");
    let worker = own();
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
        assert_eq!(left(&discovery), [""; 0]);
    }
    publish(&discovery, DiscoveryEvent::Dropped(worker)).await;
}

/// The lock of a process that is killed is released like that of a discovery that is dropped.
#[tokio::test]
async fn what_a_publisher_leaves_behind_is_dropped_at_once_and_removed() {
    let (_pools, discovery) = pools();
    let (goes, stays) = (own(), own());
    let mut subscriptions = [
        subscribe(&again(&discovery)).await,
        subscribe(&again(&discovery)).await,
    ];
    let killed = again(&discovery);
    publish(&killed, DiscoveryEvent::Added(goes.clone())).await;
    publish(&discovery, DiscoveryEvent::Added(stays.clone())).await;
    for subscription in &mut subscriptions {
        let mut heard =
            [next(subscription).await, next(subscription).await].map(|event| match event {
                DiscoveryEvent::Added(worker) => worker.uid,
                other => panic!("{other:?}"),
            });
        heard.sort();
        assert_eq!(heard, [goes.uid, stays.uid]);
    }
    drop(killed);
    for subscription in &mut subscriptions {
        assert_eq!(
            next(subscription).await,
            DiscoveryEvent::Dropped(goes.clone())
        );
    }
    assert_eq!(left(&discovery), [discovery.entry_of(stays.uid)]);
    assert_eq!(again(&discovery).snapshot(), [stays]);
}

#[tokio::test]
async fn the_entries_of_dead_publishers_are_removed_in_all_namespaces() {
    let (_pools, discovery) = pools();
    let [other, third] = ["other", "a.third"]
        .map(|name| LocalDiscovery::in_directory(discovery.directory.path(), name).unwrap());
    let killed = [again(&discovery), again(&other)];
    for publisher in &killed {
        publish(publisher, DiscoveryEvent::Added(own())).await;
    }
    drop(killed);
    let worker = own();
    assert_eq!(left(&discovery).len(), 2);
    publish(&third, DiscoveryEvent::Added(worker.clone())).await;
    assert_eq!(left(&discovery), [format!("a.third.{}.json", worker.uid)]);
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
async fn what_is_no_entry_is_skipped() {
    let (_pools, discovery) = pools();
    let good = own();
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
    std::fs::create_dir(path(&discovery.entry_of(WorkerUid::new()))).unwrap();
    std::fs::write(path("README"), "?").unwrap();
    std::fs::write(path("x.json"), "{}").unwrap();
    let torn = std::fs::File::create(path(&discovery.entry_of(WorkerUid::new()))).unwrap();
    torn.lock().unwrap();
    assert_eq!(
        ready(&mut subscribe(&again(&discovery)).await),
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
            .publish(DiscoveryEvent::Added(own()))
            .await
            .unwrap_err();
        assert!(
            error.to_string().contains("cannot publish a worker ("),
            "{error}"
        );
        let Err(error) = discovery.subscribe(None).await else {
            panic!("{} was trusted", path.display())
        };
        assert!(
            error.to_string().contains("cannot watch for workers ("),
            "{error}"
        );
        assert!(LocalDiscovery::namespaces_in(&path).is_err());
        assert_eq!(discovery.snapshot(), []);
    }
    let discovery = LocalDiscovery::in_directory(directory.path().join("new"), "test").unwrap();
    publish(&discovery, DiscoveryEvent::Added(own())).await;
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
async fn who_filters_hears_of_what_begins_and_ceases_to_fit() {
    let (_pools, discovery) = pools();
    let (plain, other) = (own(), own());
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
async fn a_hundred_at_once_are_all_heard_of() {
    let (_pools, discovery) = pools();
    let mut subscription = subscribe(&again(&discovery)).await;
    let workers: Vec<_> = (0..100).map(|_| own()).collect();
    let publishing = workers
        .iter()
        .map(|worker| discovery.publish(DiscoveryEvent::Added(worker.clone())));
    for outcome in soon(futures_util::future::join_all(publishing)).await {
        outcome.unwrap();
    }
    let mut heard = Vec::new();
    while heard.len() < workers.len() {
        let DiscoveryEvent::Added(worker) = next(&mut subscription).await else {
            panic!("none was dropped or updated")
        };
        heard.push(worker);
    }
    heard.sort_by_key(|worker| worker.uid);
    assert_eq!(heard, workers);
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
    assert_eq!(left(&discovery), [""; 0]);
}

#[tokio::test]
async fn who_stops_waiting_loses_nothing() {
    let (_pools, discovery) = pools();
    let mut subscription = subscribe(&discovery).await;
    let worker = own();
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
async fn a_directory_that_somebody_removes_is_made_again() {
    let (_pools, discovery) = pools();
    let (first, second) = (own(), own());
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
fn names_are_checked() {
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
async fn what_cannot_be_published_is_said() {
    let (_pools, discovery) = pools();
    let mut worker = own();
    worker.extra.insert("long".into(), "x".repeat(10_000));
    let error = discovery
        .publish(DiscoveryEvent::Added(worker))
        .await
        .unwrap_err();
    assert_eq!(error.source.kind(), io::ErrorKind::InvalidInput);
    assert_eq!(left(&discovery), [""; 0]);
    let nowhere = LocalDiscovery::in_directory("/nowhere/at/all", "test").unwrap();
    assert_eq!(
        nowhere
            .publish(DiscoveryEvent::Added(own()))
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
    let worker = own();
    publish(&discovery, DiscoveryEvent::Added(worker.clone())).await;
    assert_eq!(LocalDiscovery::namespaces_in(&directory).unwrap(), ["test"]);
    publish(&discovery, DiscoveryEvent::Dropped(worker)).await;
    assert_eq!(left(&discovery), [fresh, "package.json".into()]);
}
