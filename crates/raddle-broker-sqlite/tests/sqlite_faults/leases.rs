//! Leases hold while their worker lives, whatever happens to the database, and end soon after.

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

use crate::{helper_process::HelperProcess, support::*};

const LEASE: Duration = Duration::from_millis(800);
/// The offset of the creation time in the shared file.
const CREATED_AT_OFFSET: u64 = 40;

fn shared_file(database: &Path) -> PathBuf {
    format!("{}-state", database.display()).into()
}

async fn start_attempt(broker: &Sqlite, owner: Tid) -> AttemptId {
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

/// Renews a lease on a thread, as a worker does, until it is stopped or the lease has expired.
struct RenewalThread {
    stop: mpsc::Sender<()>,
    thread: thread::JoinHandle<(Vec<LeaseStatus>, Duration)>,
}

impl RenewalThread {
    fn start(mut renewer: Box<dyn LeaseRenewer>) -> Self {
        let (stop, stopped) = mpsc::channel();
        let thread = thread::spawn(move || {
            let (mut statuses, mut slowest) = (Vec::new(), Duration::ZERO);
            while statuses.last() != Some(&LeaseStatus::Expired) {
                let began = Instant::now();
                statuses.push(
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
            (statuses, slowest)
        });
        Self { stop, thread }
    }

    /// The results of the renewals, and the duration of the slowest.
    fn stop(self) -> (Vec<LeaseStatus>, Duration) {
        let _ = self.stop.send(());
        self.thread.join().unwrap()
    }
}

/// A worker that renews its lease and has started the only task.
async fn start_busy_worker(path: &Path) -> (Sqlite, RenewalThread, AttemptId) {
    let broker = open(path).await;
    submit(&broker, vec![spec("task")]).await.unwrap();
    let owner = worker(&broker, LEASE).await;
    let renewals = RenewalThread::start(broker.lease_renewer(owner, LEASE));
    let attempt_id = start_attempt(&broker, owner).await;
    (broker, renewals, attempt_id)
}

/// A process is stopped in a transaction, with every lock, for two leases.
#[tokio::test]
async fn leases_are_renewed_while_the_database_is_locked() {
    let (_directory, path) = temp_database();
    let (broker, renewals, attempt_id) = start_busy_worker(&path).await;
    let mut other = HelperProcess::start("hold", &path);
    assert_eq!(other.next_line().unwrap(), ["held"]);
    kill_process(other.pid(), Signal::STOP).unwrap();
    let late = write_expired_slot(&path);
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
    let (statuses, slowest) = renewals.stop();
    assert!(
        statuses
            .iter()
            .all(|status| matches!(status, LeaseStatus::Alive(_))),
        "{statuses:?}"
    );
    assert!(slowest < LEASE / 2, "{slowest:?}");
    drop(late);
}

/// Writes a slot with an expired lease, whose reclaim needs the database.
fn write_expired_slot(database: &Path) -> fs::File {
    let file = fs::OpenOptions::new()
        .write(true)
        .open(shared_file(database))
        .unwrap();
    file.write_all_at(&1_500_000_000_000_000_000_i64.to_ne_bytes(), 64 * 40)
        .unwrap();
    file.write_all_at(&1_i64.to_ne_bytes(), 64 * 40 + 8)
        .unwrap();
    file
}

/// The lease is two minutes long.
#[tokio::test]
async fn reclaims_tasks_of_a_killed_worker_before_its_lease_ends() {
    let (_directory, path) = temp_database();
    let broker = open(&path).await;
    let tid = submit(&broker, vec![spec("task")]).await.unwrap()[0];
    let mut other = HelperProcess::start("tied", &path);
    let owner: Tid = other.next_line().unwrap()[1].parse().unwrap();
    assert!(broker.reclaim().await.unwrap().is_empty());
    other.kill();
    // Its child may still be running the task.
    assert!(broker.reclaim().await.unwrap().is_empty());
    assert_eq!(broker.workers().await.unwrap().len(), 1);
    // Registered before the child ends, because a registration also reclaims, and returns no list.
    let watcher = worker(&broker, TTL).await;
    let mut renewer = broker.lease_renewer(watcher, TTL);
    fs::write(path.with_extension("go"), "").unwrap();
    let reclaimed: Vec<Reclaimed> = wait_until("the loss is noticed", async || {
        match renewer.renew(Heartbeat::default()).unwrap() {
            LeaseStatus::Alive(reclaimed) if reclaimed.is_empty() => None,
            LeaseStatus::Alive(reclaimed) => Some(reclaimed),
            other => panic!("{other:?}"),
        }
    })
    .await;
    assert_eq!(
        reclaimed
            .iter()
            .map(|reclaimed| reclaimed.attempt_id)
            .collect::<Vec<_>>(),
        [AttemptId {
            tid,
            attempt: 1,
            owner
        }]
    );
    assert_eq!(broker.workers().await.unwrap().len(), 1);
}

/// A stopped worker keeps its liveness lock, but its lease expires.
#[tokio::test]
async fn reclaims_tasks_of_a_stopped_worker_when_its_lease_ends() {
    let (_directory, path) = temp_database();
    let broker = open(&path).await;
    let owner = worker(&broker, LEASE).await;
    broker.acquire_liveness_lock(owner);
    submit(&broker, vec![spec("task")]).await.unwrap();
    start_attempt(&broker, owner).await;
    assert!(broker.reclaim().await.unwrap().is_empty());
    let reclaimed = wait_until("the end of the lease", async || {
        Some(open(&path).await.reclaim().await.unwrap()).filter(|reclaimed| !reclaimed.is_empty())
    })
    .await;
    assert_eq!(reclaimed[0].attempt_id.owner, owner);
    assert_eq!(
        broker
            .lease_renewer(owner, LEASE)
            .renew(Heartbeat::default())
            .unwrap(),
        LeaseStatus::Expired
    );
}

/// As after Ctrl-Z and `fg`: the worker is neither taken for dead nor is its lease much longer.
#[tokio::test]
async fn a_resumed_worker_renews_its_lease_as_before() {
    // Longer than in other tests, so that a slow disk does not end it.
    const LEASE: Duration = Duration::from_secs(3);
    let (_directory, path) = temp_database();
    let broker = open(&path).await;
    let owner = worker(&broker, LEASE).await;
    submit(&broker, vec![spec("task")]).await.unwrap();
    let attempt_id = start_attempt(&broker, owner).await;
    let heartbeat = |ttl| {
        broker
            .lease_renewer(owner, ttl)
            .renew(Heartbeat::default())
            .unwrap()
    };
    assert!(broker.acquire_liveness_lock(owner));
    assert!(
        !broker.acquire_liveness_lock(owner),
        "the lock is already held"
    );
    assert_eq!(heartbeat(LEASE * 1000), LeaseStatus::Alive(Vec::new()));
    tokio::time::sleep(LEASE * 2).await;
    assert_eq!(heartbeat(LEASE), LeaseStatus::Alive(Vec::new()));
    assert_eq!(heartbeat(LEASE), LeaseStatus::Alive(Vec::new()));
    let other = open(&path).await;
    assert!(
        other.reclaim().await.unwrap().is_empty(),
        "the worker is alive"
    );
    let reclaimed = wait_until("the end of the lease", async || {
        Some(other.reclaim().await.unwrap()).filter(|reclaimed| !reclaimed.is_empty())
    })
    .await;
    assert_eq!(reclaimed[0].attempt_id, attempt_id);
}

#[tokio::test]
async fn leases_survive_the_removal_of_the_shared_file() {
    let (_directory, path) = temp_database();
    let (broker, renewals, attempt_id) = start_busy_worker(&path).await;
    let began = Instant::now();
    while began.elapsed() < LEASE * 3 {
        let _ = fs::remove_file(shared_file(&path));
        // A new broker, and an old one.
        assert!(open(&path).await.reclaim().await.unwrap().is_empty());
        tokio::time::sleep(LEASE / 3).await;
        assert!(broker.reclaim().await.unwrap().is_empty());
    }
    let (statuses, _) = renewals.stop();
    assert!(
        statuses
            .iter()
            .all(|status| *status == LeaseStatus::Alive(Vec::new())),
        "{statuses:?}"
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

/// A dead worker does not enter itself into the new file, and the time for that is limited.
#[tokio::test]
async fn reclaims_a_dead_worker_after_the_removal_of_the_shared_file() {
    let (_directory, path) = temp_database();
    let broker = open(&path).await;
    submit(&broker, vec![spec("task")]).await.unwrap();
    let owner = worker(&broker, LEASE).await;
    let attempt_id = start_attempt(&broker, owner).await;
    drop(broker);
    fs::remove_file(shared_file(&path)).unwrap();
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
        .open(shared_file(&path))
        .unwrap()
        .write_all_at(&long_ago, CREATED_AT_OFFSET)
        .unwrap();
    let LeaseStatus::Alive(reclaimed) = renewer.renew(Heartbeat::default()).unwrap() else {
        panic!("its lease is long")
    };
    assert_eq!(
        reclaimed
            .iter()
            .map(|reclaimed| reclaimed.attempt_id)
            .collect::<Vec<_>>(),
        [attempt_id]
    );
}

/// More workers than slots; slots of deregistered workers are reused.
#[tokio::test]
async fn reuses_slots_of_the_shared_file() {
    let (_directory, path) = temp_database();
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
            fs::metadata(shared_file(&path)).unwrap().len() < 64 * 256,
            "round {round}"
        );
    }
}

/// A rolled back registration leaves a slot, which the next reclaim frees.
#[tokio::test]
async fn frees_slots_without_a_worker() {
    let (_directory, path) = temp_database();
    let broker = open(&path).await;
    let _file = write_expired_slot(&path);
    broker.reclaim().await.unwrap();
    assert_eq!(
        fs::read(shared_file(&path)).unwrap()[64 * 40..64 * 40 + 16],
        [0; 16]
    );
}
