//! Tests of file discovery.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use tempfile::TempDir;

use super::*;
use crate::{
    WorkerUid,
    testing::{next, ready, soon, tagged, worker_at},
};

/// Polling is off: events come from inotify.
const NEVER: Duration = Duration::from_secs(3600);

fn temporary(name: &str) -> (TempDir, FileDiscovery) {
    let directory = tempfile::tempdir().unwrap();
    let discovery = FileDiscovery::new(directory.path().join(name))
        .unwrap()
        .poll_interval(NEVER);
    (directory, discovery)
}

async fn subscribe(discovery: &FileDiscovery) -> Subscription {
    soon(discovery.subscribe(None)).await.unwrap()
}

async fn publish(discovery: &FileDiscovery, event: DiscoveryEvent) {
    soon(discovery.publish(event)).await.unwrap();
}

fn list(workers: &[&WorkerMetadata]) -> String {
    serde_json::to_string(workers).unwrap()
}

/// Replaces a file atomically.
fn replace(path: &Path, text: &str) {
    let draft = path.with_extension("draft");
    fs::write(&draft, text).unwrap();
    fs::rename(draft, path).unwrap();
}

fn names(directory: &Path) -> Vec<String> {
    let found = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = found.collect();
    names.sort();
    names
}

#[tokio::test]
async fn reports_changes_of_a_file() {
    let (_directory, discovery) = temporary("workers.json");
    let path = discovery.path();
    let [one, two] = ["h:1", "h:2"].map(worker_at);
    fs::write(path, list(&[&one, &two])).unwrap();
    let mut subscription = subscribe(&discovery).await;
    assert_eq!(
        ready(&mut subscription),
        [
            DiscoveryEvent::Added(one.clone()),
            DiscoveryEvent::Added(two.clone())
        ]
    );
    // With a rename, and by writing in place.
    let changed = tagged(&one, "gpu");
    replace(path, &list(&[&changed, &two]));
    assert_eq!(
        next(&mut subscription).await,
        DiscoveryEvent::Updated(changed.clone())
    );
    fs::write(path, list(&[&changed])).unwrap();
    assert_eq!(next(&mut subscription).await, DiscoveryEvent::Dropped(two));
    fs::remove_file(path).unwrap();
    assert_eq!(
        next(&mut subscription).await,
        DiscoveryEvent::Dropped(changed)
    );
    fs::write(path, serde_json::to_string(&one).unwrap()).unwrap();
    assert_eq!(next(&mut subscription).await, DiscoveryEvent::Added(one));
}

#[tokio::test]
async fn reports_changes_in_a_directory() {
    let (_directory, discovery) = temporary("workers");
    let mut subscription = subscribe(&discovery).await;
    assert_eq!(ready(&mut subscription), []);
    assert!(!discovery.path().exists(), "subscribing creates nothing");
    let worker = worker_at("h:1");
    let changed = tagged(&worker, "gpu");
    publish(&discovery, DiscoveryEvent::Added(worker.clone())).await;
    assert_eq!(
        next(&mut subscription).await,
        DiscoveryEvent::Added(worker.clone())
    );
    assert_eq!(names(discovery.path()), [format!("{}.json", worker.uid)]);
    let mode = fs::metadata(discovery.path().join(format!("{}.json", worker.uid)))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o444, 0o444, "other users may read it");
    publish(&discovery, DiscoveryEvent::Updated(changed.clone())).await;
    assert_eq!(
        next(&mut subscription).await,
        DiscoveryEvent::Updated(changed.clone())
    );
    assert_eq!(
        ready(&mut subscribe(&discovery).await),
        [DiscoveryEvent::Added(changed.clone())]
    );
    publish(&discovery, DiscoveryEvent::Dropped(worker.clone())).await;
    assert_eq!(
        next(&mut subscription).await,
        DiscoveryEvent::Dropped(changed)
    );
    publish(&discovery, DiscoveryEvent::Dropped(worker.clone())).await;
    publish(&discovery, DiscoveryEvent::Added(worker.clone())).await;
    assert_eq!(
        next(&mut subscription).await,
        DiscoveryEvent::Added(worker.clone())
    );
    discovery.withdraw(&worker);
    assert_eq!(
        next(&mut subscription).await,
        DiscoveryEvent::Dropped(worker.clone())
    );
    assert_eq!(names(discovery.path()), [""; 0]);
    // The directory may be removed and created.
    publish(&discovery, DiscoveryEvent::Added(worker.clone())).await;
    assert_eq!(
        next(&mut subscription).await,
        DiscoveryEvent::Added(worker.clone())
    );
    fs::remove_dir_all(discovery.path()).unwrap();
    assert_eq!(
        next(&mut subscription).await,
        DiscoveryEvent::Dropped(worker.clone())
    );
    publish(&discovery, DiscoveryEvent::Added(worker.clone())).await;
    assert_eq!(next(&mut subscription).await, DiscoveryEvent::Added(worker));
}

/// As a program in another language would publish.
#[tokio::test]
async fn handwritten_file_is_a_worker() {
    let (_directory, discovery) = temporary("workers");
    fs::create_dir(discovery.path()).unwrap();
    let mut subscription = subscribe(&discovery).await;
    let path = discovery.path().join("python-7070.json");
    // The pid need not exist on this machine.
    replace(
        &path,
        r#"{"address": "10.0.0.7:7070", "pid": 4194304, "tags": ["python"], "started_by": "hand"}"#,
    );
    let DiscoveryEvent::Added(worker) = next(&mut subscription).await else {
        panic!("expected an addition")
    };
    assert_eq!(
        (worker.address.as_str(), worker.uid),
        ("10.0.0.7:7070", WorkerUid::from_address("10.0.0.7:7070"))
    );
    assert_eq!(
        (worker.pid, worker.secure, worker.tags.contains("python")),
        (4_194_304, false, true)
    );
    fs::remove_file(path).unwrap();
    assert_eq!(
        next(&mut subscription).await,
        DiscoveryEvent::Dropped(worker)
    );
}

#[tokio::test]
async fn notices_directories_that_are_created_later() {
    let (directory, discovery) = temporary("later/still/workers.json");
    let discovery = discovery.poll_interval(POLL_INTERVAL);
    let mut subscription = subscribe(&discovery).await;
    let worker = worker_at("h:1");
    for step in ["later", "later/still"] {
        fs::create_dir(directory.path().join(step)).unwrap();
        assert!(
            tokio::time::timeout(Duration::from_millis(50), subscription.next())
                .await
                .is_err()
        );
    }
    fs::write(discovery.path(), list(&[&worker])).unwrap();
    assert_eq!(next(&mut subscription).await, DiscoveryEvent::Added(worker));
}

/// As Kubernetes updates a `ConfigMap`: each version has its own directory, and one symbolic link
/// is replaced.
#[tokio::test]
async fn follows_symbolic_links_that_are_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let map = directory.path().join("map");
    fs::create_dir(&map).unwrap();
    let [one, two] = ["h:1", "h:2"].map(worker_at);
    let version = |name: &str, worker: &WorkerMetadata| {
        fs::create_dir(map.join(name)).unwrap();
        fs::write(map.join(name).join("workers.json"), list(&[worker])).unwrap();
        symlink(name, map.join("..data_tmp")).unwrap();
        fs::rename(map.join("..data_tmp"), map.join("..data")).unwrap();
    };
    version("..one", &one);
    symlink("..data/workers.json", map.join("workers.json")).unwrap();
    let of_file = FileDiscovery::new(map.join("workers.json"))
        .unwrap()
        .poll_interval(NEVER);
    let of_directory = FileDiscovery::new(&map).unwrap().poll_interval(NEVER);
    let mut subscriptions = [subscribe(&of_file).await, subscribe(&of_directory).await];
    for subscription in &mut subscriptions {
        assert_eq!(ready(subscription), [DiscoveryEvent::Added(one.clone())]);
    }
    for (name, before, after) in [
        ("..two", &one, &two),
        ("..three", &two, &one),
        ("..four", &one, &two),
    ] {
        version(name, after);
        for subscription in &mut subscriptions {
            assert_eq!(
                next(subscription).await,
                DiscoveryEvent::Dropped(before.clone())
            );
            assert_eq!(
                next(subscription).await,
                DiscoveryEvent::Added(after.clone())
            );
        }
    }
}

#[tokio::test]
async fn polling_notices_what_inotify_does_not_report() {
    let (directory, discovery) = temporary("workers");
    fs::create_dir(discovery.path()).unwrap();
    let elsewhere = directory.path().join("elsewhere.json");
    let [one, two] = ["h:1", "h:2"].map(worker_at);
    fs::write(&elsewhere, list(&[&one])).unwrap();
    symlink(&elsewhere, discovery.path().join("link.json")).unwrap();
    let mut subscription = subscribe(&discovery.clone().poll_interval(Duration::ZERO)).await;
    assert_eq!(
        ready(&mut subscription),
        [DiscoveryEvent::Added(one.clone())]
    );
    // Nothing changes in the directory itself. The new file has the same length and, within a clock
    // tick, the same mtime.
    fs::write(&elsewhere, list(&[&two])).unwrap();
    assert_eq!(next(&mut subscription).await, DiscoveryEvent::Dropped(one));
    assert_eq!(next(&mut subscription).await, DiscoveryEvent::Added(two));
}

#[tokio::test]
async fn invalid_file_keeps_its_last_valid_contents() {
    let (_directory, discovery) = temporary("workers.json");
    let path = discovery.path();
    let [one, two] = ["h:1", "h:2"].map(worker_at);
    let mut late = {
        // From the beginning.
        fs::write(path, "[{\"address\":").unwrap();
        subscribe(&discovery).await
    };
    assert_eq!(ready(&mut late), []);
    fs::write(path, list(&[&one])).unwrap();
    let mut subscription = subscribe(&discovery).await;
    for subscription in [&mut late, &mut subscription] {
        assert_eq!(next(subscription).await, DiscoveryEvent::Added(one.clone()));
    }
    let huge = " ".repeat(entry::MAX_FILE_SIZE + 1);
    let half = list(&[&one, &two]);
    for bad in [
        "",
        &half[..half.len() / 2],
        "[{\"address\": \"h:2\"}, {\"address\": 3}]",
        &huge,
        "\0",
    ] {
        fs::write(path, bad).unwrap();
        assert!(
            tokio::time::timeout(Duration::from_millis(50), subscription.next())
                .await
                .is_err(),
            "{bad:.9}"
        );
    }
    fs::remove_file(path).unwrap();
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    // The worker is dropped before the FIFO replaces the file.
    assert_eq!(
        next(&mut subscription).await,
        DiscoveryEvent::Dropped(one.clone())
    );
    rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    assert!(
        tokio::time::timeout(Duration::from_millis(50), subscription.next())
            .await
            .is_err()
    );
    replace(path, &list(&[&two]));
    assert_eq!(
        next(&mut subscription).await,
        DiscoveryEvent::Added(two.clone())
    );
    // A subscriber that did not read meanwhile gets the differences.
    assert_eq!(next(&mut late).await, DiscoveryEvent::Dropped(one));
    assert_eq!(next(&mut late).await, DiscoveryEvent::Added(two));
}

#[tokio::test]
async fn invalid_entry_does_not_affect_others() {
    let (_directory, discovery) = temporary("workers");
    let directory = discovery.path();
    let [good, torn] = ["h:1", "h:2"].map(worker_at);
    publish(&discovery, DiscoveryEvent::Added(good.clone())).await;
    let text = serde_json::to_vec(&torn).unwrap();
    fs::write(directory.join("torn.json"), &text[..text.len() / 2]).unwrap();
    fs::write(directory.join("wrong.json"), "{\"address\": 7}").unwrap();
    fs::write(
        directory.join("huge.json"),
        vec![b' '; entry::MAX_FILE_SIZE + 1],
    )
    .unwrap();
    fs::write(directory.join(".draft.json"), &text).unwrap();
    fs::write(directory.join("README"), &text).unwrap();
    fs::create_dir(directory.join("directory.json")).unwrap();
    symlink("nowhere", directory.join("dangling.json")).unwrap();
    symlink("loop.json", directory.join("loop.json")).unwrap();
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(
        rustix::fs::CWD,
        directory.join("pipe.json"),
        rustix::fs::FileType::Fifo,
        mode,
        0,
    )
    .unwrap();
    let mut subscription = subscribe(&discovery).await;
    assert_eq!(ready(&mut subscription), [DiscoveryEvent::Added(good)]);
    // An incomplete file may be completed, and truncated again.
    fs::write(directory.join("torn.json"), &text).unwrap();
    assert_eq!(
        next(&mut subscription).await,
        DiscoveryEvent::Added(torn.clone())
    );
    fs::write(directory.join("torn.json"), &text[..text.len() / 2]).unwrap();
    assert!(
        tokio::time::timeout(Duration::from_millis(50), subscription.next())
            .await
            .is_err()
    );
    fs::remove_file(directory.join("torn.json")).unwrap();
    assert_eq!(next(&mut subscription).await, DiscoveryEvent::Dropped(torn));
}

#[tokio::test]
async fn first_file_wins_for_a_duplicate_worker() {
    let (_directory, discovery) = temporary("workers");
    let worker = worker_at("h:1");
    let other = tagged(&worker, "other");
    fs::create_dir(discovery.path()).unwrap();
    fs::write(discovery.path().join("a.json"), list(&[&worker])).unwrap();
    fs::write(discovery.path().join("b.json"), list(&[&other])).unwrap();
    let mut subscription = subscribe(&discovery).await;
    assert_eq!(ready(&mut subscription), [DiscoveryEvent::Added(worker)]);
    fs::remove_file(discovery.path().join("a.json")).unwrap();
    assert_eq!(
        next(&mut subscription).await,
        DiscoveryEvent::Updated(other)
    );
}

#[tokio::test]
async fn publishing_removes_entries_of_killed_workers_at_the_same_address() {
    let (_directory, discovery) = temporary("workers");
    let [before, after] = ["10.0.0.1:7070", "10.0.0.1:7070"].map(worker_at);
    let (elsewhere, local) = (
        worker_at("10.0.0.2:7070"),
        ["127.0.0.1:7070", "127.0.0.1:7070"].map(worker_at),
    );
    for worker in [&before, &elsewhere, &local[0]] {
        publish(&discovery, DiscoveryEvent::Added(worker.clone())).await;
    }
    let mut subscription = subscribe(&discovery).await;
    assert_eq!(ready(&mut subscription).len(), 3);
    publish(&discovery, DiscoveryEvent::Added(after.clone())).await;
    // On another machine that shares the directory, a loopback address is another worker.
    publish(&discovery, DiscoveryEvent::Added(local[1].clone())).await;
    let file = |worker: &WorkerMetadata| format!("{}.json", worker.uid);
    let mut left = [&elsewhere, &local[0], &after, &local[1]].map(file);
    left.sort();
    assert_eq!(names(discovery.path()), left);
}

#[tokio::test]
async fn publish_errors_name_the_cause() {
    let (_directory, discovery) = temporary("workers.json");
    fs::write(discovery.path(), "[]").unwrap();
    let error = discovery
        .publish(DiscoveryEvent::Added(worker_at("h:1")))
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("cannot publish a worker (") && error.contains("name a directory"),
        "{error}"
    );
    publish(&discovery, DiscoveryEvent::Dropped(worker_at("h:1"))).await;
    let (directory, discovery) = temporary("no/such/directory");
    let error = discovery
        .publish(DiscoveryEvent::Added(worker_at("h:1")))
        .await
        .unwrap_err();
    assert_eq!(error.source.kind(), io::ErrorKind::NotFound);
    publish(&discovery, DiscoveryEvent::Dropped(worker_at("h:1"))).await;
    let (_other, discovery) = temporary("workers");
    let error = discovery
        .publish(DiscoveryEvent::Added(worker_at("nowhere")))
        .await
        .unwrap_err();
    assert_eq!(error.source.kind(), io::ErrorKind::InvalidInput);
    assert!(!discovery.path().exists() && names(directory.path()).is_empty());
    assert!(FileDiscovery::new("").is_err());
    let long = FileDiscovery::new(format!("/{}", "x".repeat(300))).unwrap();
    let Err(error) = long.subscribe(None).await else {
        panic!("the path is too long")
    };
    assert!(
        error
            .to_string()
            .starts_with("cannot read the list of workers (/xxx"),
        "{error}"
    );
}

/// Readers see only complete entries while others write and remove them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_never_see_a_partial_entry() {
    let (_directory, discovery) = temporary("workers");
    let mut worker = worker_at("10.0.0.1:7070");
    worker.extra = (0..20).map(|n| (n.to_string(), "x".repeat(1000))).collect();
    publish(&discovery, DiscoveryEvent::Added(worker.clone())).await;
    let (stop, path) = (
        Arc::new(AtomicBool::new(false)),
        discovery.path().join(format!("{}.json", worker.uid)),
    );
    let (done, reader) = (Arc::clone(&stop), path.clone());
    let reading = tokio::task::spawn_blocking(move || {
        let mut read = 0;
        while !done.load(Ordering::Relaxed) {
            assert_eq!(
                entry::read_workers(entry::open_file(&reader).unwrap())
                    .unwrap()
                    .len(),
                1
            );
            read += 1;
        }
        read
    });
    for version in 0..200 {
        publish(
            &discovery,
            DiscoveryEvent::Updated(WorkerMetadata {
                version: version.to_string(),
                ..worker.clone()
            }),
        )
        .await;
    }
    stop.store(true, Ordering::Relaxed);
    assert!(soon(reading).await.unwrap() > 0);
    assert_eq!(names(discovery.path()).len(), 1);
}

#[tokio::test]
async fn hundred_concurrent_publications_are_all_reported() {
    let (_directory, discovery) = temporary("workers");
    let mut subscription = subscribe(&discovery).await;
    let workers: Vec<_> = (0..100).map(|n| worker_at(&format!("h:{n}"))).collect();
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
}

#[tokio::test]
async fn cancelled_wait_loses_no_event() {
    let (_directory, discovery) = temporary("workers");
    let filter: WorkerFilter = Arc::new(|worker| !worker.tags.contains("other"));
    let mut subscription = soon(discovery.subscribe(Some(filter))).await.unwrap();
    publish(
        &discovery,
        DiscoveryEvent::Added(tagged(&worker_at("h:9"), "other")),
    )
    .await;
    let worker = worker_at("h:1");
    for event in [
        DiscoveryEvent::Added(worker.clone()),
        DiscoveryEvent::Dropped(worker),
    ] {
        publish(&discovery, event.clone()).await;
        // Each wait is too short for an event.
        let heard = soon(async {
            loop {
                if let Ok(heard) =
                    tokio::time::timeout(Duration::from_micros(50), subscription.next()).await
                {
                    break heard.unwrap();
                }
            }
        });
        assert_eq!(heard.await, event);
    }
}

#[test]
fn number_of_workers_is_limited() {
    let directory = tempfile::tempdir().unwrap();
    let path = |file: usize| directory.path().join(format!("{file}.json"));
    for file in 0..3 {
        let entries: Vec<_> = (0..2000)
            .map(|n| format!("{{\"address\": \"10.0.{file}.1:{}\"}}", n + 1))
            .collect();
        fs::write(path(file), format!("[{}]", entries.join(","))).unwrap();
    }
    let mut reader = Reader::new(directory.path().to_owned());
    assert_eq!(reader.read().unwrap().len(), entry::MAX_WORKERS);
    fs::remove_file(path(0)).unwrap();
    assert_eq!(reader.read().unwrap().len(), 4000, "room for all");
}

#[test]
fn errors_are_logged_once() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("workers.json");
    fs::write(&path, "[").unwrap();
    let mut reader = reader::Reader::new(path.clone());
    let mut log = || raddle_process::testing::capture_logs(|| drop(reader.try_read()));
    let logged = log();
    assert!(
        logged.contains("WARN") && logged.contains("workers.json") && logged.contains("incomplete"),
        "{logged}"
    );
    assert_eq!(log(), "", "unchanged");
    fs::write(&path, "{}").unwrap();
    assert!(log().contains("missing field `address`"));
    fs::write(&path, "[]").unwrap();
    assert_eq!(log(), "");
    fs::write(&path, "{}").unwrap();
    assert!(
        log().contains("missing field `address`"),
        "valid in between"
    );
    fs::write(&path, "[]").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
    assert!(log().contains("world-writable"));
    assert_eq!(log(), "");
}
