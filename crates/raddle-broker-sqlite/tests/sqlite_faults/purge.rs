//! Purges.

use std::{collections::HashSet, fs, path::Path};

use raddle_broker::{AttemptId, ClaimRequest, Log, OutputStream, Queries, Tasks};
use raddle_broker_sqlite::Sqlite;
use raddle_model::{HumanDuration, TaskSpec, Tid};

use crate::support::*;

/// Runs tasks with this spec to their end.
async fn run(broker: &Sqlite, owner: Tid, kind: TaskSpec, tasks: usize) -> HashSet<Tid> {
    let tids = submit(broker, vec![kind; tasks]).await.unwrap();
    let mut left = tids.len();
    while left > 0 {
        let claims = broker
            .claim(ClaimRequest {
                max: 500,
                ..request(owner, SOON)
            })
            .await
            .unwrap();
        left -= claims.len();
        broker
            .complete(
                claims
                    .iter()
                    .map(|claim| success(claim.attempt_id))
                    .collect(),
            )
            .await
            .unwrap();
    }
    tids.into_iter().collect()
}

async fn count_events(broker: &Sqlite, tids: &HashSet<Tid>) -> usize {
    let events = broker
        .events(Some(0), None, u32::MAX, std::time::Duration::ZERO)
        .await
        .unwrap();
    events
        .iter()
        .filter(|event| tids.contains(&event.tid))
        .count()
}

/// With many older tasks that are kept, and in several processes.
#[tokio::test]
async fn purge_removes_events_with_their_tasks() {
    let (_directory, path) = temp_database();
    let broker = open(&path).await;
    let owner = worker(&broker, TTL).await;
    let kept = run(&broker, owner, spec("kept"), 2500).await;
    let brief = TaskSpec {
        result_ttl: Some(HumanDuration::default()),
        ..spec("brief")
    };
    let expired = run(&broker, owner, brief, 1500).await;
    let kept_events = count_events(&broker, &kept).await;
    let mut purged = 0;
    for _ in 0..12 {
        purged += open(&path).await.purge().await.unwrap();
    }
    assert_eq!(purged, 1500);
    assert_eq!(count_events(&broker, &expired).await, 0);
    assert_eq!(count_events(&broker, &kept).await, kept_events);
}

fn meta_value(path: &Path, key: &str) -> i64 {
    let db = rusqlite::Connection::open(path).unwrap();
    db.query_row("SELECT value FROM meta WHERE key = ?1", [key], |row| {
        row.get(0)
    })
    .unwrap()
}

/// The time of the next expiry.
fn next_expiry(path: &Path) -> i64 {
    let db = rusqlite::Connection::open(path).unwrap();
    db.query_row("SELECT min(expires_at) FROM finished", [], |row| row.get(0))
        .unwrap()
}

fn execute_sql(path: &Path, sql: &str) {
    rusqlite::Connection::open(path)
        .unwrap()
        .execute_batch(sql)
        .unwrap();
}

/// A scan of all records would block other writers, once a minute for each worker.
#[tokio::test]
async fn purge_does_not_scan_before_the_next_expiry() {
    let (_directory, path) = temp_database();
    let broker = open(&path).await;
    let owner = worker(&broker, TTL).await;
    run(&broker, owner, spec("kept"), 3).await;
    // A scan would find all of them.
    execute_sql(&path, "UPDATE finished SET expires_at = 1");
    assert_eq!(broker.purge().await.unwrap(), 0);
    // A record that expires sooner than all others is found, and the others with it.
    run(
        &broker,
        owner,
        TaskSpec {
            result_ttl: Some(HumanDuration::default()),
            ..spec("brief")
        },
        1,
    )
    .await;
    assert_eq!(open(&path).await.purge().await.unwrap(), 4);
    assert_eq!(broker.purge().await.unwrap(), 0);
    assert_eq!(
        meta_value(&path, "next_expiry"),
        i64::MAX,
        "no record is left that can expire"
    );
    let later = TaskSpec {
        result_ttl: Some(HumanDuration::secs(3600)),
        ..spec("later")
    };
    for kind in [spec("latest"), later.clone(), spec("latest"), later] {
        run(&broker, owner, kind, 1).await;
    }
    assert_eq!(meta_value(&path, "next_expiry"), next_expiry(&path));
    // A round without an expired record restores the time of the next expiry.
    execute_sql(&path, "UPDATE meta SET value = 1 WHERE key = 'next_expiry'");
    assert_eq!(broker.purge().await.unwrap(), 0);
    assert_eq!(meta_value(&path, "next_expiry"), next_expiry(&path));
}

/// Each record is scanned once, and records behind the cursor are not forgotten.
#[tokio::test]
async fn one_purge_round_removes_all_expired_records() {
    let (_directory, path) = temp_database();
    let broker = open(&path).await;
    let owner = worker(&broker, TTL).await;
    let later = TaskSpec {
        result_ttl: Some(HumanDuration::secs(3600)),
        ..spec("later")
    };
    submit(&broker, vec![later]).await.unwrap();
    let oldest = broker.claim(request(owner, SOON)).await.unwrap()[0].attempt_id;
    let brief = TaskSpec {
        result_ttl: Some(HumanDuration::default()),
        ..spec("brief")
    };
    for (kind, tasks) in [(brief.clone(), 1500), (spec("kept"), 10), (brief, 1500)] {
        run(&broker, owner, kind, tasks).await;
    }
    let mut at = 0;
    for _ in 0..3 {
        assert_eq!(open(&path).await.purge().await.unwrap(), 1000);
        let next = meta_value(&path, "swept_done");
        assert!(next > at, "it continues from the cursor");
        if at == 0 {
            broker.complete(vec![success(oldest)]).await.unwrap();
        }
        at = next;
    }
    // The round is over. The record that was added behind the cursor had not expired, so the next
    // round removes nothing.
    for _ in 0..2 {
        assert_eq!(broker.purge().await.unwrap(), 0);
        assert_eq!(meta_value(&path, "swept_done"), 0);
    }
    assert_eq!(meta_value(&path, "next_expiry"), next_expiry(&path));
}

/// Adds records without tasks that never expire and are older than any task.
fn insert_kept_records(path: &Path, records: u32) {
    execute_sql(
        path,
        &format!(
            "WITH RECURSIVE n (tid) AS (SELECT 1700000000000000000 UNION ALL SELECT tid + 1 FROM n LIMIT {records})
             INSERT INTO finished (tid, state, dead_letter, finished_at, expires_at, attempt, failures, losses, ended_at, peak_rss, user_us,
                               system_us, stdout_bytes, stderr_bytes)
             SELECT tid, 4, 0, 1, {max}, 1, 0, 0, 1, 0, 0, 0, 0, 0 FROM n",
            max = i64::MAX
        ),
    );
}

/// A worker that purged nothing tries again a minute later.
#[tokio::test]
async fn purge_finds_an_expired_record_behind_many_kept_ones() {
    let (_directory, path) = temp_database();
    let broker = open(&path).await;
    let owner = worker(&broker, TTL).await;
    insert_kept_records(&path, 120_000);
    let brief = TaskSpec {
        result_ttl: Some(HumanDuration::default()),
        ..spec("brief")
    };
    run(&broker, owner, brief, 1).await;
    assert_eq!(broker.purge().await.unwrap(), 1);
    assert_eq!(meta_value(&path, "swept_done"), 0, "the round is over");
}

/// Live output is stored in a file.
#[tokio::test]
async fn purge_removes_output_files() {
    let (_directory, path) = temp_database();
    let broker = open(&path).await;
    let owner = worker(&broker, TTL).await;
    let brief = TaskSpec {
        result_ttl: Some(HumanDuration::default()),
        ..spec("brief")
    };
    let tid = submit(&broker, vec![brief]).await.unwrap()[0];
    let attempt_id: AttemptId = broker.claim(request(owner, SOON)).await.unwrap()[0].attempt_id;
    broker
        .append_output(attempt_id, OutputStream::Stdout, b"live".to_vec())
        .await
        .unwrap();
    broker.complete(vec![success(attempt_id)]).await.unwrap();
    let directory = Path::new(&format!("{}-out", path.display())).to_owned();
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 1);
    assert_eq!(broker.purge().await.unwrap(), 1);
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
    assert!(broker.task(tid).await.unwrap().is_none());
}
