//! Workers that are published, heard of, and killed.

use std::{
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
    process::{Child, Command},
    sync::Arc,
    time::Duration,
};

use tempfile::TempDir;

use super::*;
use crate::discovery::testing::{at, next, ready, soon, tagged};

/// A process that does nothing, and is gone with this.
struct Idle(Child);

impl Idle {
    fn start() -> Self {
        Self(Command::new("sleep").arg("300").spawn().unwrap())
    }

    fn worker(&self) -> WorkerMetadata {
        worker(self.0.id())
    }

    fn kill(&mut self) {
        self.0.kill().unwrap();
    }
}

impl Drop for Idle {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn worker(pid: u32) -> WorkerMetadata {
    WorkerMetadata { pid, ..at("unix-abstract:x") }
}

/// One that this process is.
fn own() -> WorkerMetadata {
    worker(std::process::id())
}

fn pools() -> (TempDir, LocalDiscovery) {
    let folder = tempfile::tempdir().unwrap();
    let discovery = LocalDiscovery::in_folder(folder.path().join("pools"), "test").unwrap();
    (folder, discovery)
}

/// The same, as another process would have it.
fn again(discovery: &LocalDiscovery) -> LocalDiscovery {
    LocalDiscovery::in_folder(discovery.folder.pools().path(), discovery.namespace()).unwrap()
}

async fn publish(discovery: &LocalDiscovery, event: Event) {
    soon(discovery.publish(event)).await.unwrap();
}

async fn subscribe(discovery: &LocalDiscovery) -> Box<dyn Subscription> {
    soon(discovery.subscribe(None)).await.unwrap()
}

/// All files and folders below the folder of pools.
fn left(discovery: &LocalDiscovery) -> Vec<String> {
    fn walk(path: &Path, found: &mut Vec<String>) {
        for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
            found.push(entry.file_name().to_string_lossy().into_owned());
            walk(&entry.path(), found);
        }
    }
    let mut found = Vec::new();
    walk(discovery.folder.pools().path(), &mut found);
    found.sort();
    found
}

/// Waits until nothing is.
async fn nothing_left(discovery: &LocalDiscovery) {
    soon(async {
        while !left(discovery).is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

fn entry_of(worker: &WorkerMetadata) -> entry::Name {
    entry::Name { uid: worker.uid, process: Process::find(worker.pid).unwrap().unwrap() }
}

/// Writes a file as nobody of us would.
fn scribble(discovery: &LocalDiscovery, worker: &WorkerMetadata, text: &[u8]) -> PathBuf {
    std::fs::create_dir_all(discovery.folder.path()).unwrap();
    let path = discovery.folder.path().join(entry_of(worker).to_string());
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    path
}

#[tokio::test]
async fn what_is_there_is_told_without_waiting() {
    let (_pools, discovery) = pools();
    let workers = [own(), own()];
    for worker in &workers {
        publish(&discovery, Event::Added(worker.clone())).await;
    }
    let mut subscription = subscribe(&again(&discovery)).await;
    assert_eq!(ready(&mut subscription), workers.clone().map(Event::Added));
    assert_eq!(again(&discovery).snapshot(), workers);
    for worker in workers {
        publish(&discovery, Event::Dropped(worker)).await;
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
        // The folder comes and goes each time.
        publish(&discovery, Event::Added(worker.clone())).await;
        assert_eq!(next(&mut subscription).await, Event::Added(worker.clone()));
        publish(&discovery, Event::Updated(changed.clone())).await;
        assert_eq!(next(&mut subscription).await, Event::Updated(changed.clone()));
        publish(&discovery, Event::Updated(changed.clone())).await;
        publish(&discovery, Event::Dropped(worker.clone())).await;
        assert_eq!(next(&mut subscription).await, Event::Dropped(changed.clone()));
        assert_eq!(left(&discovery), [""; 0]);
    }
    publish(&discovery, Event::Dropped(worker)).await;
}

#[tokio::test]
async fn a_process_that_is_killed_is_gone_at_once_and_leaves_nothing() {
    let (_pools, discovery) = pools();
    let (mut idle, stays) = (Idle::start(), Idle::start());
    let (goes, stays) = (idle.worker(), stays.worker());
    let mut subscriptions = [subscribe(&again(&discovery)).await, subscribe(&again(&discovery)).await];
    publish(&discovery, Event::Added(goes.clone())).await;
    publish(&discovery, Event::Added(stays.clone())).await;
    for subscription in &mut subscriptions {
        let mut heard = [next(subscription).await, next(subscription).await].map(|event| match event {
            Event::Added(worker) => worker.uid,
            other => panic!("{other:?}"),
        });
        heard.sort();
        assert_eq!(heard, [goes.uid, stays.uid]);
    }
    // Nobody has waited for it: it is a zombie from now on.
    idle.kill();
    for subscription in &mut subscriptions {
        assert_eq!(next(subscription).await, Event::Dropped(goes.clone()));
    }
    assert_eq!(left(&discovery), vec![entry_of(&stays).to_string(), "test".into()]);
    assert_eq!(discovery.snapshot(), [stays]);
}

#[tokio::test]
async fn the_last_one_takes_the_folder_with_it() {
    let (_pools, discovery) = pools();
    let mut idle = Idle::start();
    let mut subscription = subscribe(&discovery).await;
    publish(&discovery, Event::Added(idle.worker())).await;
    next(&mut subscription).await;
    idle.kill();
    assert!(matches!(next(&mut subscription).await, Event::Dropped(_)));
    nothing_left(&discovery).await;
}

#[tokio::test]
async fn what_the_dead_have_left_is_swept_in_all_namespaces() {
    let (_pools, discovery) = pools();
    let other = LocalDiscovery::in_folder(discovery.folder.pools().path(), "other").unwrap();
    let mut idle = Idle::start();
    let draft = entry::draft_name(Process::find(idle.0.id()).unwrap().unwrap(), 1);
    for namespace in [&discovery, &other] {
        publish(namespace, Event::Added(idle.worker())).await;
        std::fs::write(namespace.folder.path().join(&draft), "{").unwrap();
    }
    idle.kill();
    idle.0.wait().unwrap();
    assert_eq!(left(&discovery).len(), 6);
    // A subscriber of one: only of what it was asked for.
    let mut subscription = subscribe(&again(&other)).await;
    assert_eq!(ready(&mut subscription), []);
    assert_eq!(left(&discovery).len(), 3);
    // A new publisher, somewhere else.
    let third = LocalDiscovery::in_folder(discovery.folder.pools().path(), "third").unwrap();
    let worker = own();
    publish(&third, Event::Added(worker.clone())).await;
    assert_eq!(left(&discovery), vec![entry_of(&worker).to_string(), "third".into()]);
    assert_eq!(LocalDiscovery::namespaces_in(discovery.folder.pools().path()).unwrap(), ["third"]);
}

#[tokio::test]
async fn a_worker_whose_process_is_gone_is_not_published() {
    let (_pools, discovery) = pools();
    let mut idle = Idle::start();
    let worker = idle.worker();
    publish(&discovery, Event::Added(worker.clone())).await;
    idle.kill();
    idle.0.wait().unwrap();
    publish(&discovery, Event::Updated(tagged(&worker, "late"))).await;
    assert_eq!(left(&discovery), [""; 0]);
}

#[tokio::test]
async fn a_number_that_is_used_again_is_another_process() {
    let (_pools, discovery) = pools();
    let worker = own();
    let real = entry_of(&worker).to_string();
    let path = scribble(&discovery, &worker, &entry::write(&worker).unwrap());
    let (before, space) = real.strip_suffix(".json").unwrap().rsplit_once('-').unwrap();
    let (start, _) = before.rsplit_once('-').unwrap();
    std::fs::rename(&path, discovery.folder.path().join(format!("{start}-1-{space}.json"))).unwrap();
    let mut subscription = subscribe(&discovery).await;
    assert_eq!(ready(&mut subscription), []);
    assert_eq!(left(&discovery), [""; 0]);
}

#[tokio::test]
async fn an_entry_of_another_pid_namespace_is_left_alone() {
    let (_pools, discovery) = pools();
    let worker = own();
    let path = scribble(&discovery, &worker, &entry::write(&worker).unwrap());
    let (before, _) = path.to_str().unwrap().rsplit_once('-').unwrap();
    let moved = format!("{before}-1.json");
    std::fs::rename(&path, &moved).unwrap();
    let mut subscription = subscribe(&discovery).await;
    assert_eq!((ready(&mut subscription), discovery.snapshot()), (vec![], vec![]));
    assert!(Path::new(&moved).exists());
}

#[tokio::test]
async fn a_worker_that_is_started_anew_is_updated() {
    let (_pools, discovery) = pools();
    let (mut first, second) = (Idle::start(), Idle::start());
    let before = first.worker();
    let after = WorkerMetadata { pid: second.0.id(), ..before.clone() };
    let mut subscription = subscribe(&discovery).await;
    publish(&discovery, Event::Added(before.clone())).await;
    assert_eq!(next(&mut subscription).await, Event::Added(before));
    publish(&discovery, Event::Updated(after.clone())).await;
    assert_eq!(next(&mut subscription).await, Event::Updated(after.clone()));
    assert_eq!(left(&discovery), vec![entry_of(&after).to_string(), "test".into()]);
    // What becomes of the process that it was does not matter any more.
    first.kill();
    first.0.wait().unwrap();
    assert_eq!(ready(&mut subscription), []);
    assert_eq!(left(&discovery), vec![entry_of(&after).to_string(), "test".into()]);
    assert_eq!(discovery.snapshot(), [after]);
}

#[tokio::test]
async fn of_two_entries_of_a_worker_the_later_one_counts() {
    let (pools, discovery) = pools();
    let (first, second) = (Idle::start(), Idle::start());
    let before = first.worker();
    let after = WorkerMetadata { pid: second.0.id(), ..before.clone() };
    publish(&discovery, Event::Added(before.clone())).await;
    let (entry, aside) = (discovery.folder.path().join(entry_of(&before).to_string()), pools.path().join("aside"));
    std::fs::hard_link(&entry, &aside).unwrap();
    // Times of files are not that exact.
    tokio::time::sleep(Duration::from_millis(30)).await;
    publish(&discovery, Event::Updated(after.clone())).await;
    std::fs::rename(&aside, &entry).unwrap();
    assert_eq!(ready(&mut subscribe(&discovery).await), [Event::Added(after.clone())]);
    assert_eq!(discovery.snapshot(), [after]);
}

#[tokio::test]
async fn what_is_no_entry_is_skipped() {
    let (_pools, discovery) = pools();
    let good = own();
    publish(&discovery, Event::Added(good.clone())).await;
    let mut subscription = subscribe(&discovery).await;
    assert_eq!(ready(&mut subscription).len(), 1);
    let torn = own();
    let text = entry::write(&torn).unwrap();
    scribble(&discovery, &torn, &text[..text.len() / 2]);
    let mut huge = text.clone();
    huge.resize(entry::LONGEST + 1, b' ');
    scribble(&discovery, &own(), &huge);
    scribble(&discovery, &own(), b"");
    scribble(&discovery, &own(), &text);
    let open = own();
    let path = scribble(&discovery, &open, &entry::write(&open).unwrap());
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666)).unwrap();
    let linked = own();
    let aside = discovery.folder.pools().path().join("aside");
    std::fs::write(&aside, entry::write(&linked).unwrap()).unwrap();
    symlink(&aside, discovery.folder.path().join(entry_of(&linked).to_string())).unwrap();
    let pipe = discovery.folder.path().join(entry_of(&own()).to_string());
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    std::fs::create_dir(discovery.folder.path().join(entry_of(&own()).to_string())).unwrap();
    std::fs::write(discovery.folder.path().join("README"), "?").unwrap();
    std::fs::write(discovery.folder.path().join("x.json"), "{}").unwrap();
    let mut late = subscribe(&again(&discovery)).await;
    assert_eq!(ready(&mut late), [Event::Added(good.clone())]);
    assert_eq!(discovery.snapshot(), [good]);
    // What is torn may yet become whole.
    scribble(&discovery, &torn, &text);
    for subscription in [&mut subscription, &mut late] {
        assert_eq!(next(subscription).await, Event::Added(torn.clone()));
        assert_eq!(ready(subscription), []);
    }
}

#[tokio::test]
async fn what_belongs_to_others_is_not_looked_at() {
    if !rustix::process::geteuid().is_root() {
        // Nobody else can give files away.
        return;
    }
    let (_pools, discovery) = pools();
    let (good, foreign) = (own(), own());
    publish(&discovery, Event::Added(good.clone())).await;
    let path = scribble(&discovery, &foreign, &entry::write(&foreign).unwrap());
    std::os::unix::fs::chown(&path, Some(65_534), None).unwrap();
    assert_eq!(discovery.snapshot(), [good]);
    std::os::unix::fs::chown(discovery.folder.path(), Some(65_534), None).unwrap();
    assert_eq!(discovery.snapshot(), []);
    assert_eq!(ready(&mut subscribe(&discovery).await), []);
    let refused = discovery.publish(Event::Added(own())).await.unwrap_err();
    assert_eq!(refused.source.kind(), io::ErrorKind::PermissionDenied);
}

#[tokio::test]
async fn folders_that_others_can_write_to_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let open = folder.path().join("open");
    std::fs::create_dir(&open).unwrap();
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o777)).unwrap();
    let real = folder.path().join("real");
    std::fs::create_dir(&real).unwrap();
    let link = folder.path().join("link");
    symlink(&real, &link).unwrap();
    for path in [open, link] {
        let discovery = LocalDiscovery::in_folder(&path, "test").unwrap();
        let error = discovery.publish(Event::Added(own())).await.unwrap_err();
        assert!(error.to_string().contains("cannot publish a worker ("), "{error}");
        let Err(error) = discovery.subscribe(None).await else { panic!("{} was trusted", path.display()) };
        assert!(error.to_string().contains("cannot watch for workers ("), "{error}");
        assert!(LocalDiscovery::namespaces_in(&path).is_err());
        assert_eq!(discovery.snapshot(), []);
    }
    let discovery = LocalDiscovery::in_folder(folder.path().join("new"), "test").unwrap();
    publish(&discovery, Event::Added(own())).await;
    for path in [discovery.folder.pools().path(), discovery.folder.path()] {
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o700);
    }
}

#[tokio::test]
async fn who_filters_hears_of_what_begins_and_ceases_to_fit() {
    let (_pools, discovery) = pools();
    let (plain, other) = (own(), own());
    let fits = tagged(&plain, "gpu");
    publish(&discovery, Event::Added(plain.clone())).await;
    let filter: Filter = Arc::new(|worker| worker.tags.contains("gpu"));
    let mut subscription = soon(discovery.subscribe(Some(filter))).await.unwrap();
    assert_eq!(ready(&mut subscription), []);
    publish(&discovery, Event::Added(other)).await;
    publish(&discovery, Event::Updated(fits.clone())).await;
    assert_eq!(next(&mut subscription).await, Event::Added(fits.clone()));
    publish(&discovery, Event::Updated(plain)).await;
    assert_eq!(next(&mut subscription).await, Event::Dropped(fits));
}

#[tokio::test]
async fn a_hundred_at_once_are_all_heard_of() {
    let (_pools, discovery) = pools();
    let mut subscription = subscribe(&again(&discovery)).await;
    let workers: Vec<_> = (0..100).map(|_| own()).collect();
    let publishing = workers.iter().map(|worker| discovery.publish(Event::Added(worker.clone())));
    for outcome in soon(futures_util::future::join_all(publishing)).await {
        outcome.unwrap();
    }
    let mut heard = Vec::new();
    while heard.len() < workers.len() {
        let Event::Added(worker) = next(&mut subscription).await else { panic!("none was dropped or updated") };
        heard.push(worker);
    }
    heard.sort_by_key(|worker| worker.uid);
    assert_eq!(heard, workers);
    let dropping = workers.iter().map(|worker| discovery.publish(Event::Dropped(worker.clone())));
    soon(futures_util::future::join_all(dropping)).await;
    for _ in &workers {
        assert!(matches!(next(&mut subscription).await, Event::Dropped(_)));
    }
    assert_eq!(left(&discovery), [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn publishers_that_remove_each_others_folder_do_not_fail() {
    let (_pools, discovery) = pools();
    let publishers = (0..4).map(|_| {
        let discovery = again(&discovery);
        tokio::spawn(async move {
            for _ in 0..50 {
                let worker = own();
                discovery.publish(Event::Added(worker.clone())).await.unwrap();
                discovery.publish(Event::Dropped(worker)).await.unwrap();
            }
        })
    });
    for outcome in soon(futures_util::future::join_all(publishers)).await {
        outcome.unwrap();
    }
    assert_eq!(left(&discovery), [""; 0]);
}

#[tokio::test]
async fn who_stops_waiting_loses_nothing() {
    let (_pools, discovery) = pools();
    let mut subscription = subscribe(&discovery).await;
    let worker = own();
    for event in [Event::Added(worker.clone()), Event::Dropped(worker)] {
        assert!(tokio::time::timeout(Duration::from_millis(20), subscription.next()).await.is_err());
        publish(&discovery, event.clone()).await;
        assert_eq!(next(&mut subscription).await, event);
    }
}

#[tokio::test]
async fn a_subscriber_that_is_dropped_leaves_nothing() {
    let (_pools, discovery) = pools();
    let idles: Vec<_> = (0..10).map(|_| Idle::start()).collect();
    // Descriptors of these processes. Other tests may have others at the same time.
    let descriptors = || {
        let found = std::fs::read_dir("/proc/self/fdinfo").unwrap().flatten();
        let pids = found.filter_map(|fd| {
            let info = std::fs::read_to_string(fd.path()).ok()?;
            info.lines().find_map(|line| line.strip_prefix("Pid:")?.trim().parse::<u32>().ok())
        });
        pids.filter(|pid| idles.iter().any(|idle| idle.0.id() == *pid)).count()
    };
    for idle in &idles {
        publish(&discovery, Event::Added(idle.worker())).await;
    }
    let before = (descriptors(), left(&discovery));
    let mut subscription = subscribe(&discovery).await;
    assert_eq!(ready(&mut subscription).len(), 10);
    assert_eq!((before.0, descriptors()), (0, 10));
    drop(subscription);
    assert_eq!((descriptors(), left(&discovery)), before);
}

#[tokio::test]
async fn a_folder_that_somebody_removes_is_made_again() {
    let (_pools, discovery) = pools();
    let (first, second) = (own(), own());
    let mut subscription = subscribe(&discovery).await;
    publish(&discovery, Event::Added(first.clone())).await;
    assert_eq!(next(&mut subscription).await, Event::Added(first.clone()));
    std::fs::remove_dir_all(discovery.folder.pools().path()).unwrap();
    assert_eq!(next(&mut subscription).await, Event::Dropped(first));
    publish(&discovery, Event::Added(second.clone())).await;
    assert_eq!(next(&mut subscription).await, Event::Added(second));
}

#[test]
fn names_are_checked() {
    let folder = tempfile::tempdir().unwrap();
    let long = "x".repeat(65);
    for wrong in ["", ".", "..", ".x", "a/b", "../x", "a b", "ä", "a\0", &long] {
        let error = LocalDiscovery::in_folder(folder.path(), wrong).unwrap_err();
        assert_eq!(error.source.kind(), io::ErrorKind::InvalidInput, "{wrong}");
    }
    for right in ["a", "A.b_c-9", &long[1..]] {
        assert_eq!(LocalDiscovery::in_folder(folder.path(), right).unwrap().namespace(), right);
    }
    assert_eq!(LocalDiscovery::namespaces_in(folder.path().join("none")).unwrap(), [""; 0]);
}

#[tokio::test]
async fn what_cannot_be_published_is_said() {
    let (_pools, discovery) = pools();
    let mut worker = own();
    worker.extra.insert("long".into(), "x".repeat(entry::LONGEST));
    let error = discovery.publish(Event::Added(worker)).await.unwrap_err();
    assert_eq!(error.source.kind(), io::ErrorKind::InvalidInput);
    assert_eq!(left(&discovery), [""; 0]);
    let nowhere = LocalDiscovery::in_folder("/nowhere/at/all", "test").unwrap();
    assert_eq!(nowhere.publish(Event::Added(own())).await.unwrap_err().source.kind(), io::ErrorKind::NotFound);
}
