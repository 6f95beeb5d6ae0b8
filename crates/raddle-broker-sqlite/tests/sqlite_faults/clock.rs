//! Leases and clock changes.

use std::{path::Path, time::Duration};

use raddle_broker::{CompletionOutcome, Leases, Log, Queries, Registry, Tasks};
use raddle_model::{TaskState, Tid, worker::Heartbeat};
use rustix::time::{ClockId, clock_gettime};

use crate::support::*;

const YEAR_NANOS: i64 = 365 * 86_400 * 1_000_000_000;

fn monotonic_nanos() -> i64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

fn execute_sql(path: &Path, statement: &str) {
    let sqlite = rusqlite::Connection::open(path).unwrap();
    sqlite.busy_timeout(SOON).unwrap();
    assert!(sqlite.execute(statement, []).unwrap() > 0, "{statement}");
}

/// The end of a worker's lease in the shared file: a header and slots of 64 bytes, each of which
/// begins with the worker and the end.
fn lease_end(database: &Path, owner: Tid) -> i64 {
    let page = std::fs::read(format!("{}-state", database.display())).unwrap();
    let number = |bytes: &[u8]| i64::from_ne_bytes(bytes.try_into().unwrap());
    let mut slots = page.chunks_exact(64).skip(1);
    slots
        .find(|slot| number(&slot[..8]) == owner.as_i64())
        .map(|slot| number(&slot[8..16]))
        .unwrap()
}

/// The lease ends at a time of `CLOCK_MONOTONIC`.
#[tokio::test]
async fn leases_use_the_monotonic_clock() {
    let (_directory, path) = temp_database();
    let broker = open(&path).await;
    let before = monotonic_nanos();
    let owner = worker(&broker, Duration::from_secs(60)).await;
    assert!((before..=monotonic_nanos()).contains(&(lease_end(&path, owner) - 60_000_000_000)));
    let before = monotonic_nanos();
    broker
        .lease_renewer(owner, Duration::from_secs(90))
        .renew(Heartbeat::default())
        .unwrap();
    assert!((before..=monotonic_nanos()).contains(&(lease_end(&path, owner) - 90_000_000_000)));
}

/// The database was written while the clock was a year ahead. No worker expires, and ids continue
/// from there.
#[tokio::test]
async fn a_clock_that_is_set_back_expires_nothing() {
    let (_directory, path) = temp_database();
    let broker = open(&path).await;
    let owner = worker(&broker, TTL).await;
    let first = submit(&broker, vec![spec("first")]).await.unwrap()[0];
    let attempt_id = broker.claim(request(owner, SOON)).await.unwrap()[0].attempt_id;
    execute_sql(
        &path,
        &format!("UPDATE meta SET value = value + {YEAR_NANOS} WHERE key = 'last_id'"),
    );
    assert!(broker.reclaim().await.unwrap().is_empty());
    assert_eq!(broker.workers().await.unwrap().len(), 1);
    let second = submit(&open(&path).await, vec![spec("second")])
        .await
        .unwrap()[0];
    assert!(second.as_i64() > first.as_i64() + YEAR_NANOS);
    assert_eq!(
        broker.complete(vec![success(attempt_id)]).await.unwrap(),
        [CompletionOutcome::Finished(TaskState::Completed)]
    );
    let ids: Vec<_> = broker
        .events(Some(0), None, 100, Duration::ZERO)
        .await
        .unwrap()
        .iter()
        .map(|event| event.id)
        .collect();
    assert!(ids.is_sorted_by(|a, b| a < b), "{ids:?}");
    let attempt_id = broker.claim(request(owner, SOON)).await.unwrap()[0].attempt_id;
    assert_eq!(attempt_id.tid, second, "a task with a future id is ready");
}

/// `CLOCK_MONOTONIC` starts at zero with each boot, so leases of another boot are void.
#[tokio::test]
async fn leases_end_with_the_boot() {
    let (_directory, path) = temp_database();
    let broker = open(&path).await;
    let owner = worker(&broker, TTL).await;
    let tid = submit(&broker, vec![spec("task")]).await.unwrap()[0];
    broker.claim(request(owner, SOON)).await.unwrap();
    execute_sql(&path, "UPDATE workers SET boot = boot + 1");
    assert!(broker.workers().await.unwrap().is_empty());
    assert_eq!(broker.reclaim().await.unwrap().len(), 1);
    assert_eq!(
        broker.task(tid).await.unwrap().unwrap().state,
        TaskState::Created
    );
}

/// The clock was years back for a moment and left a task there. The search must not visit every ten
/// seconds in between.
#[tokio::test]
async fn resolves_a_short_id_quickly_with_an_old_first_task() {
    let (_directory, path) = temp_database();
    let broker = open(&path).await;
    let tids = submit(&broker, vec![spec("a"), spec("b")]).await.unwrap();
    let old = Tid::from_u64(1_000_000_000_000_000_000 + tids[0].short().as_u64()).unwrap();
    for table in ["tasks", "ready"] {
        execute_sql(
            &path,
            &format!("UPDATE {table} SET tid = {old} WHERE tid = {}", tids[1]),
        );
    }
    let began = std::time::Instant::now();
    assert_eq!(
        broker.resolve_short_id(tids[0].short()).await.unwrap(),
        [tids[0], old]
    );
    assert!(
        broker
            .resolve_short_id(tids[1].short())
            .await
            .unwrap()
            .is_empty()
    );
    assert!(
        began.elapsed() < Duration::from_secs(2),
        "{:?}",
        began.elapsed()
    );
}
