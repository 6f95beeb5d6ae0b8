//! Leases hold as long as their worker lives, whatever happens to the database, and not much longer.

use std::{
    fs,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use raddle_broker::{
    AttemptId, AttemptStarted, CompletionOutcome, LeaseRenewer, LeaseStatus, Leases, Queries,
    Reclaimed, Registry, Tasks,
};
use raddle_broker_sqlite::Sqlite;
use raddle_model::{TaskState, Tid, worker::Heartbeat};
use rustix::process::{Signal, kill_process};

use crate::{helper::Other, support::*};

const LEASE: Duration = Duration::from_millis(800);
/// Where the page says when it was first opened.
const MADE_AT: u64 = 40;

fn page(database: &Path) -> PathBuf {
    format!("{}-state", database.display()).into()
}

async fn begin(broker: &Sqlite, owner: Tid) -> AttemptId {
    let attempt_id = broker.claim(request(owner, SOON)).await.unwrap()[0].attempt_id;
    broker
        .mark_started(vec![AttemptStarted {
            attempt_id,
            pid: Some(std::process::id()),
        }])
        .await
        .unwrap();
    attempt_id
}

/// Beats as a worker does, on a thread of its own, until it is stopped or has lost its lease.
struct Beating {
    stop: mpsc::Sender<()>,
    thread: thread::JoinHandle<(Vec<LeaseStatus>, Duration)>,
}

impl Beating {
    fn start(mut renewer: Box<dyn LeaseRenewer>) -> Self {
        let (stop, stopped) = mpsc::channel();
        let thread = thread::spawn(move || {
            let (mut found, mut slowest) = (Vec::new(), Duration::ZERO);
            while found.last() != Some(&LeaseStatus::Expired) {
                let began = Instant::now();
                found.push(
                    renewer
                        .renew(Heartbeat {
                            busy: 1,
                            ..Heartbeat::default()
                        })
                        .unwrap(),
                );
                slowest = slowest.max(began.elapsed());
                if stopped.recv_timeout(LEASE / 4) != Err(mpsc::RecvTimeoutError::Timeout) {
                    break;
                }
            }
            (found, slowest)
        });
        Self { stop, thread }
    }

    /// What the beats found, and how long the slowest took.
    fn stop(self) -> (Vec<LeaseStatus>, Duration) {
        let _ = self.stop.send(());
        self.thread.join().unwrap()
    }
}

/// A worker that beats, and has begun the only task.
async fn at_work(path: &Path) -> (Sqlite, Beating, AttemptId) {
    let broker = open(path).await;
    submit(&broker, vec![spec("task")]).await.unwrap();
    let owner = worker(&broker, LEASE).await;
    let beating = Beating::start(broker.lease_renewer(owner, LEASE));
    let attempt_id = begin(&broker, owner).await;
    (broker, beating, attempt_id)
}

/// Somebody sits on the database for two leases: stopped in the middle of a transaction, with every lock there is.
#[tokio::test]
async fn who_holds_the_database_costs_nobody_his_lease() {
    let (_directory, path) = place();
    let (broker, beating, attempt_id) = at_work(&path).await;
    let mut other = Other::start("hold", &path);
    assert_eq!(other.hear().unwrap(), ["held"]);
    kill_process(other.pid(), Signal::STOP).unwrap();
    let late = worker_that_dies(&path);
    tokio::time::sleep(LEASE * 2).await;
    kill_process(other.pid(), Signal::CONT).unwrap();
    other.kill();
    assert!(broker.reclaim().await.unwrap().is_empty());
    let task = broker.task(attempt_id.tid).await.unwrap().unwrap();
    assert_eq!(
        (task.attempt, task.losses, task.state),
        (1, 0, TaskState::Running)
    );
    assert_eq!(
        broker.complete(vec![success(attempt_id)]).await.unwrap(),
        [CompletionOutcome::Finished(TaskState::Completed)]
    );
    let (found, slowest) = beating.stop();
    assert!(
        found
            .iter()
            .all(|pulse| matches!(pulse, LeaseStatus::Alive(_))),
        "{found:?}"
    );
    assert!(slowest < LEASE / 2, "{slowest:?}");
    drop(late);
}

/// A slot in the page whose lease has run out gives beats something to do that needs the database.
fn worker_that_dies(database: &Path) -> fs::File {
    let file = fs::OpenOptions::new()
        .write(true)
        .open(page(database))
        .unwrap();
    file.write_all_at(&1_500_000_000_000_000_000_i64.to_ne_bytes(), 64 * 40)
        .unwrap();
    file.write_all_at(&1_i64.to_ne_bytes(), 64 * 40 + 8)
        .unwrap();
    file
}

/// The lease would hold for two minutes.
#[tokio::test]
async fn a_killed_worker_is_missed_before_its_lease_ends() {
    let (_directory, path) = place();
    let broker = open(&path).await;
    let tid = submit(&broker, vec![spec("task")]).await.unwrap()[0];
    let mut other = Other::start("tied", &path);
    let owner: Tid = other.hear().unwrap()[1].parse().unwrap();
    assert!(broker.reclaim().await.unwrap().is_empty());
    other.kill();
    // It has left a child, which might still be at the task.
    assert!(broker.reclaim().await.unwrap().is_empty());
    assert_eq!(broker.workers().await.unwrap().len(), 1);
    // Before that child ends: who registers takes from the dead, and nobody is told what.
    let watcher = worker(&broker, TTL).await;
    let mut renewer = broker.lease_renewer(watcher, TTL);
    fs::write(path.with_extension("go"), "").unwrap();
    let taken: Vec<Reclaimed> = until("noticing", async || {
        match renewer.renew(Heartbeat::default()).unwrap() {
            LeaseStatus::Alive(taken) if taken.is_empty() => None,
            LeaseStatus::Alive(taken) => Some(taken),
            other => panic!("{other:?}"),
        }
    })
    .await;
    assert_eq!(
        taken
            .iter()
            .map(|taken| taken.attempt_id)
            .collect::<Vec<_>>(),
        [AttemptId {
            tid,
            attempt: 1,
            owner
        }]
    );
    assert_eq!(broker.workers().await.unwrap().len(), 1);
}

/// It holds on to life, and does nothing: as long as it is stopped it is worth no more than a dead one.
#[tokio::test]
async fn a_stopped_worker_is_missed_when_its_lease_ends() {
    let (_directory, path) = place();
    let broker = open(&path).await;
    let owner = worker(&broker, LEASE).await;
    broker.acquire_liveness_lock(owner);
    submit(&broker, vec![spec("task")]).await.unwrap();
    begin(&broker, owner).await;
    assert!(broker.reclaim().await.unwrap().is_empty());
    let taken = until("the end of the lease", async || {
        Some(open(&path).await.reclaim().await.unwrap()).filter(|taken| !taken.is_empty())
    })
    .await;
    assert_eq!(taken[0].attempt_id.owner, owner);
    assert_eq!(
        broker
            .lease_renewer(owner, LEASE)
            .renew(Heartbeat::default())
            .unwrap(),
        LeaseStatus::Expired
    );
}

/// As a process does that was stopped by Ctrl-Z, and goes on: it neither looks dead, nor is it missed no sooner than in a day.
#[tokio::test]
async fn a_worker_that_stood_still_is_as_any_other_afterwards() {
    // Longer than that of other tests: a disk that is slow for a moment must not end it.
    const LEASE: Duration = Duration::from_secs(3);
    let (_directory, path) = place();
    let broker = open(&path).await;
    let owner = worker(&broker, LEASE).await;
    submit(&broker, vec![spec("task")]).await.unwrap();
    let attempt_id = begin(&broker, owner).await;
    let heartbeat = |ttl| {
        broker
            .lease_renewer(owner, ttl)
            .renew(Heartbeat::default())
            .unwrap()
    };
    assert!(broker.acquire_liveness_lock(owner));
    assert!(!broker.acquire_liveness_lock(owner), "it is tied already");
    assert_eq!(heartbeat(LEASE * 1000), LeaseStatus::Alive(Vec::new()));
    tokio::time::sleep(LEASE * 2).await;
    assert_eq!(heartbeat(LEASE), LeaseStatus::Alive(Vec::new()));
    assert_eq!(heartbeat(LEASE), LeaseStatus::Alive(Vec::new()));
    let other = open(&path).await;
    assert!(other.reclaim().await.unwrap().is_empty(), "it lives");
    let taken = until("the end of the lease", async || {
        Some(other.reclaim().await.unwrap()).filter(|taken| !taken.is_empty())
    })
    .await;
    assert_eq!(taken[0].attempt_id, attempt_id);
}

#[tokio::test]
async fn a_worker_outlives_the_page() {
    let (_directory, path) = place();
    let (broker, beating, attempt_id) = at_work(&path).await;
    let began = Instant::now();
    while began.elapsed() < LEASE * 3 {
        let _ = fs::remove_file(page(&path));
        // One that comes anew, and one that has been there.
        assert!(open(&path).await.reclaim().await.unwrap().is_empty());
        tokio::time::sleep(LEASE / 3).await;
        assert!(broker.reclaim().await.unwrap().is_empty());
    }
    let (found, _) = beating.stop();
    assert!(
        found
            .iter()
            .all(|pulse| *pulse == LeaseStatus::Alive(Vec::new())),
        "{found:?}"
    );
    assert_eq!(
        broker.complete(vec![success(attempt_id)]).await.unwrap(),
        [CompletionOutcome::Finished(TaskState::Completed)]
    );
    assert_eq!(
        broker.task(attempt_id.tid).await.unwrap().unwrap().attempt,
        1
    );
}

/// Nobody enters it into the new one, and there is an end to the time for that.
#[tokio::test]
async fn a_dead_worker_does_not_outlive_the_page_for_long() {
    let (_directory, path) = place();
    let broker = open(&path).await;
    submit(&broker, vec![spec("task")]).await.unwrap();
    let owner = worker(&broker, LEASE).await;
    let attempt_id = begin(&broker, owner).await;
    drop(broker);
    fs::remove_file(page(&path)).unwrap();
    let broker = open(&path).await;
    tokio::time::sleep(LEASE * 2).await;
    let watcher = worker(&broker, TTL).await;
    let mut renewer = broker.lease_renewer(watcher, TTL);
    assert_eq!(
        renewer.renew(Heartbeat::default()).unwrap(),
        LeaseStatus::Alive(Vec::new())
    );
    assert_eq!(broker.workers().await.unwrap().len(), 2);
    let long_ago = 1_i64.to_ne_bytes();
    fs::OpenOptions::new()
        .write(true)
        .open(page(&path))
        .unwrap()
        .write_all_at(&long_ago, MADE_AT)
        .unwrap();
    let LeaseStatus::Alive(taken) = renewer.renew(Heartbeat::default()).unwrap() else {
        panic!("its lease is long")
    };
    assert_eq!(
        taken
            .iter()
            .map(|taken| taken.attempt_id)
            .collect::<Vec<_>>(),
        [attempt_id]
    );
}

/// More than a page holds; those that leave make room for others.
#[tokio::test]
async fn there_is_room_for_many_workers() {
    let (_directory, path) = place();
    let (broker, other) = (open(&path).await, open(&path).await);
    for round in 0..3 {
        let mut owners = Vec::new();
        for _ in 0..150 {
            owners.push(worker(&broker, TTL).await);
        }
        for owner in &owners {
            assert_eq!(
                other
                    .lease_renewer(*owner, TTL)
                    .renew(Heartbeat::default())
                    .unwrap(),
                LeaseStatus::Alive(Vec::new())
            );
        }
        assert_eq!(other.workers().await.unwrap().len(), owners.len());
        for owner in owners {
            other.deregister(owner, None).await.unwrap();
        }
        assert!(broker.workers().await.unwrap().is_empty());
        assert!(
            fs::metadata(page(&path)).unwrap().len() < 64 * 256,
            "round {round}"
        );
    }
}

/// A registration that is undone leaves a slot behind, and the next look takes that away.
#[tokio::test]
async fn slots_that_are_nobodys_are_taken_away() {
    let (_directory, path) = place();
    let broker = open(&path).await;
    let _file = worker_that_dies(&path);
    broker.reclaim().await.unwrap();
    assert_eq!(
        fs::read(page(&path)).unwrap()[64 * 40..64 * 40 + 16],
        [0; 16]
    );
}
