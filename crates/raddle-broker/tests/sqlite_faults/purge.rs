//! What is purged leaves nothing behind.

use std::{collections::HashSet, fs, path::Path};

use raddle_broker::{ClaimRequest, Fence, Log, Output, Purged, Stream, Tasks, sqlite::Sqlite};
use raddle_core::{Span, Spec, Tid};

use crate::support::*;

/// Runs tasks of this kind to their end.
async fn run(broker: &Sqlite, owner: Tid, kind: Spec, tasks: usize) -> HashSet<Tid> {
    let tids = submit(broker, vec![kind; tasks]).await.unwrap();
    let mut left = tids.len();
    while left > 0 {
        let claims = broker.claim(ClaimRequest { max: 500, ..request(owner, SOON) }).await.unwrap();
        left -= claims.len();
        broker.finish(claims.iter().map(|claim| success(claim.fence)).collect()).await.unwrap();
    }
    tids.into_iter().collect()
}

async fn events_of(broker: &Sqlite, tids: &HashSet<Tid>) -> usize {
    let events = broker.events(0, None, u32::MAX, std::time::Duration::ZERO).await.unwrap();
    events.iter().filter(|event| tids.contains(&event.tid)).count()
}

/// However many tasks are kept that are older, and by however many processes.
#[tokio::test]
async fn events_go_with_their_tasks() {
    let (_folder, path) = place();
    let broker = open(&path).await;
    let owner = worker(&broker, TTL).await;
    let kept = run(&broker, owner, spec("kept"), 2500).await;
    let brief = Spec { result_ttl: Some(Span::default()), ..spec("brief") };
    let gone = run(&broker, owner, brief, 1500).await;
    let of_kept = events_of(&broker, &kept).await;
    let mut purged = 0;
    for _ in 0..12 {
        purged += open(&path).await.purge().await.unwrap().tasks;
    }
    assert_eq!(purged, 1500);
    assert_eq!(events_of(&broker, &gone).await, 0);
    assert_eq!(events_of(&broker, &kept).await, of_kept);
}

/// Whoever dies on the way has left either the record, which the next one finds, or nothing.
#[tokio::test]
async fn files_go_before_their_records() {
    let (_folder, path) = place();
    let broker = open(&path).await;
    let owner = worker(&broker, TTL).await;
    let brief = Spec { result_ttl: Some(Span::default()), ..spec("brief") };
    let tid = submit(&broker, vec![brief]).await.unwrap()[0];
    let fence: Fence = broker.claim(request(owner, SOON)).await.unwrap()[0].fence;
    broker.append_output(fence, Stream::Stdout, b"live".to_vec()).await.unwrap();
    broker.finish(vec![success(fence)]).await.unwrap();
    let folder = Path::new(&format!("{}-out", path.display())).to_owned();
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
    // Nobody can write meanwhile, and so nothing is committed.
    let other = rusqlite::Connection::open(&path).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let purge = tokio::spawn({
        let broker = open(&path).await;
        async move { broker.purge().await }
    });
    until("removing the file", async || (fs::read_dir(&folder).unwrap().count() == 0).then_some(())).await;
    assert!(broker.task(tid).await.unwrap().is_some());
    other.execute_batch("ROLLBACK").unwrap();
    assert_eq!(purge.await.unwrap().unwrap(), Purged { tasks: 1 });
    assert!(broker.task(tid).await.unwrap().is_none());
    assert_eq!(broker.purge().await.unwrap(), Purged { tasks: 0 });
}
