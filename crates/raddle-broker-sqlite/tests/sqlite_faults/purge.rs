//! What is purged leaves nothing behind.

use std::{collections::HashSet, fs, path::Path};

use raddle_broker::{AttemptId, ClaimRequest, Log, OutputStream, Queries, Tasks};
use raddle_broker_sqlite::Sqlite;
use raddle_model::{HumanDuration, TaskSpec, Tid};

use crate::support::*;

/// Runs tasks of this kind to their end.
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

async fn events_of(broker: &Sqlite, tids: &HashSet<Tid>) -> usize {
    let events = broker
        .events(Some(0), None, u32::MAX, std::time::Duration::ZERO)
        .await
        .unwrap();
    events
        .iter()
        .filter(|event| tids.contains(&event.tid))
        .count()
}

/// However many tasks are kept that are older, and by however many processes.
#[tokio::test]
async fn events_go_with_their_tasks() {
    let (_directory, path) = place();
    let broker = open(&path).await;
    let owner = worker(&broker, TTL).await;
    let kept = run(&broker, owner, spec("kept"), 2500).await;
    let brief = TaskSpec {
        result_ttl: Some(HumanDuration::default()),
        ..spec("brief")
    };
    let gone = run(&broker, owner, brief, 1500).await;
    let of_kept = events_of(&broker, &kept).await;
    let mut purged = 0;
    for _ in 0..12 {
        purged += open(&path).await.purge().await.unwrap();
    }
    assert_eq!(purged, 1500);
    assert_eq!(events_of(&broker, &gone).await, 0);
    assert_eq!(events_of(&broker, &kept).await, of_kept);
}

fn remembered(path: &Path, key: &str) -> i64 {
    let db = rusqlite::Connection::open(path).unwrap();
    db.query_row("SELECT value FROM meta WHERE key = ?1", [key], |row| {
        row.get(0)
    })
    .unwrap()
}

/// When the first of all records expires.
fn soonest(path: &Path) -> i64 {
    let db = rusqlite::Connection::open(path).unwrap();
    db.query_row("SELECT min(expires_at) FROM done", [], |row| row.get(0))
        .unwrap()
}

fn alter(path: &Path, sql: &str) {
    rusqlite::Connection::open(path)
        .unwrap()
        .execute_batch(sql)
        .unwrap();
}

/// Looking at all that is kept would hold up everybody else, once a minute and for each worker.
#[tokio::test]
async fn nobody_looks_before_the_next_record_expires() {
    let (_directory, path) = place();
    let broker = open(&path).await;
    let owner = worker(&broker, TTL).await;
    run(&broker, owner, spec("kept"), 3).await;
    // Whoever looked would find all of them.
    alter(&path, "UPDATE done SET expires_at = 1");
    assert_eq!(broker.purge().await.unwrap(), 0);
    // One that expires sooner than any before is found all the same, and the others with it.
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
        remembered(&path, "next_expiry"),
        i64::MAX,
        "nothing is left that could expire"
    );
    let later = TaskSpec {
        result_ttl: Some(HumanDuration::secs(3600)),
        ..spec("later")
    };
    for kind in [spec("latest"), later.clone(), spec("latest"), later] {
        run(&broker, owner, kind, 1).await;
    }
    assert_eq!(remembered(&path, "next_expiry"), soonest(&path));
    // After a round that was in vain it is known again.
    alter(&path, "UPDATE meta SET value = 1 WHERE key = 'next_expiry'");
    assert_eq!(broker.purge().await.unwrap(), 0);
    assert_eq!(remembered(&path, "next_expiry"), soonest(&path));
}

/// Each record is looked at once, and what ends behind the round is not forgotten.
#[tokio::test]
async fn what_expires_together_goes_in_one_round() {
    let (_directory, path) = place();
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
        let next = remembered(&path, "swept_done");
        assert!(next > at, "it goes on from where it was");
        if at == 0 {
            broker.complete(vec![success(oldest)]).await.unwrap();
        }
        at = next;
    }
    // The round is over. What has ended since the last one had expired by then, and so another finds that nothing is left.
    for _ in 0..2 {
        assert_eq!(broker.purge().await.unwrap(), 0);
        assert_eq!(remembered(&path, "swept_done"), 0);
    }
    assert_eq!(remembered(&path, "next_expiry"), soonest(&path));
}

/// Adds records that are kept for good and older than any task, without the tasks.
fn keep(path: &Path, records: u32) {
    alter(
        path,
        &format!(
            "WITH RECURSIVE n (tid) AS (SELECT 1700000000000000000 UNION ALL SELECT tid + 1 FROM n LIMIT {records})
             INSERT INTO done (tid, state, dead, finished_at, expires_at, attempt, failures, losses, ended_at, peak_rss, user_us,
                               system_us, stdout_bytes, stderr_bytes)
             SELECT tid, 4, 0, 1, {max}, 1, 0, 0, 1, 0, 0, 0, 0, 0 FROM n",
            max = i64::MAX
        ),
    );
}

/// Whoever is told that nothing has gone comes back a minute later.
#[tokio::test]
async fn what_has_expired_behind_many_that_are_kept_goes_at_once() {
    let (_directory, path) = place();
    let broker = open(&path).await;
    let owner = worker(&broker, TTL).await;
    keep(&path, 120_000);
    let brief = TaskSpec {
        result_ttl: Some(HumanDuration::default()),
        ..spec("brief")
    };
    run(&broker, owner, brief, 1).await;
    assert_eq!(broker.purge().await.unwrap(), 1);
    assert_eq!(remembered(&path, "swept_done"), 0, "the round is over");
}

/// Live output is in a file.
#[tokio::test]
async fn files_go_with_their_records() {
    let (_directory, path) = place();
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
