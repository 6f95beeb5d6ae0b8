//! A database that is made with its first task in it.

use std::{collections::BTreeMap, fs, path::Path};

use raddle_broker::{Own, OwnRequest, Submit, Tasks, conformance, sqlite::Sqlite};
use raddle_core::{Spec, State};
use rusqlite::{Connection, types::Value};

use crate::support::*;

fn own(spec: Spec) -> OwnRequest {
    OwnRequest { task: Submit::new(spec), worker: conformance::info("inline"), lease: TTL, yields: true }
}

/// All rows of all tables and all keys of all indexes. Ids and times differ from one to the next: an id is shown by its place among them all, and a time as
/// such.
fn contents(path: &Path) -> BTreeMap<String, Vec<Vec<String>>> {
    let database = Connection::open(path).unwrap();
    let check: String = database.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(check, "ok");
    let mut tables = database.prepare("SELECT name FROM sqlite_schema WHERE type = 'table'").unwrap();
    let tables: Vec<String> = tables.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
    let ids: Vec<i64> = database
        .prepare("SELECT tid FROM tasks UNION SELECT tid FROM workers UNION SELECT id FROM events ORDER BY 1")
        .unwrap()
        .query_map([], |row| row.get(0))
        .unwrap()
        .map(Result::unwrap)
        .collect();
    let rows = |table: &String| {
        let mut query = database.prepare(&format!("SELECT * FROM {table}")).unwrap();
        let columns = query.column_count();
        let shown = |value: Value| match value {
            Value::Integer(number) if ids.contains(&number) => format!("id {:?}", ids.binary_search(&number)),
            Value::Integer(number) if number > 1 << 32 => "a time".into(),
            value => format!("{value:?}"),
        };
        let rows = query.query_map([], |row| (0..columns).map(|at| row.get(at).map(shown)).collect());
        rows.unwrap().map(Result::unwrap).collect()
    };
    tables.iter().map(|table| (table.clone(), rows(table))).collect()
}

#[tokio::test]
async fn it_is_what_a_transaction_would_have_made_of_it() {
    let specs = [
        spec("plain"),
        Spec { queue: "gpu".into(), priority: 7, requires: "cuda,big".parse().unwrap(), ..spec("odd ☃ '\"") },
    ];
    for spec in specs {
        let ((_one, here), (_other, by_itself)) = (place(), place());
        let broker = Sqlite::open_here(&here).await.unwrap();
        let Own { submitted, worker, claim } = broker.submit_own(own(spec.clone())).await.unwrap();
        assert!(!with_suffix(&here, "-wal").exists(), "it has not been opened");
        assert!(with_suffix(&here, "-first").exists(), "nor synced");
        broker.sync().await.unwrap();
        assert!(!with_suffix(&here, "-first").exists());
        let threaded = open(&by_itself).await;
        threaded.submit_own(own(spec.clone())).await.unwrap();
        assert_eq!(contents(&here), contents(&by_itself));

        let found = broker.task(submitted.tid()).await.unwrap().unwrap();
        assert_eq!((found.state, found.worker, found.attempt), (State::Spawning, worker, 1));
        let verdicts = broker.finish(vec![success(claim.unwrap().fence)]).await.unwrap();
        assert_eq!(verdicts, [raddle_broker::Verdict::Done(State::Completed)]);
        assert!(submit(&broker, vec![spec]).await.unwrap()[0] > submitted.tid());
        assert_sound(&broker).await;
    }
}

#[tokio::test]
async fn what_takes_more_than_a_row_of_some_tables_is_left_to_a_transaction() {
    let large = Spec::command(["echo".to_owned(), "x".repeat(10_000)]);
    let unique = Spec { unique_key: Some("once".into()), ..spec("unique") };
    let later = Spec { delay: Some("1h".parse().unwrap()), ..spec("later") };
    let expiring = Spec { lifetime: Some("1h".parse().unwrap()), ..spec("expiring") };
    for spec in [large, unique, later, expiring] {
        let (_folder, path) = place();
        let broker = Sqlite::open_here(&path).await.unwrap();
        let made = broker.submit_own(own(spec.clone())).await.unwrap();
        assert!(with_suffix(&path, "-wal").exists());
        assert_eq!(broker.task(made.submitted.tid()).await.unwrap().unwrap().spec, spec);
        assert_sound(&broker).await;
    }
}

#[tokio::test]
async fn who_comes_second_finds_the_task_of_the_first() {
    let (_folder, path) = place();
    let (first, second) = (Sqlite::open_here(&path).await.unwrap(), Sqlite::open_here(&path).await.unwrap());
    let one = first.submit_own(own(spec("one"))).await.unwrap().submitted.tid();
    let two = second.submit_own(own(spec("two"))).await.unwrap().submitted.tid();
    assert!(two > one);
    for broker in [&first, &second] {
        assert_eq!(stored(broker).await.len(), 2);
        assert_sound(broker).await;
    }
}

/// Nobody was told that it would last: what is left of it is not half a task.
#[tokio::test]
async fn what_a_power_cut_has_left_of_it_is_all_or_nothing() {
    let (_folder, path) = place();
    let broker = Sqlite::open_here(&path).await.unwrap();
    let claim = broker.submit_own(own(spec("first"))).await.unwrap().claim.unwrap();
    let whole = fs::read(&path).unwrap();
    broker.started(vec![raddle_broker::Started { fence: claim.fence, pid: None }]).await.unwrap();
    // Not synced either.
    let log = fs::read(with_suffix(&path, "-wal")).unwrap();
    drop(broker);
    let holes = (0..whole.len() / 4096).map(|page| {
        let mut pieces = whole.clone();
        pieces[page * 4096..][..4096].fill(0);
        pieces
    });
    let cut = [Vec::new(), whole[..4096].to_vec(), whole[..20_000].to_vec()];
    let left = holes.chain(cut).map(|pieces| (pieces, 0)).chain([(whole.clone(), 1)]);
    for ((pieces, tasks), has_log) in left.flat_map(|left| [(left.clone(), false), (left, true)]) {
        for suffix in ["", "-wal", "-shm", "-first"] {
            let _ = fs::remove_file(with_suffix(&path, suffix));
        }
        fs::write(&path, pieces).unwrap();
        if has_log {
            fs::write(with_suffix(&path, "-wal"), &log).unwrap();
        }
        fs::hard_link(&path, with_suffix(&path, "-first")).unwrap();
        let broker = open(&path).await;
        assert_eq!(stored(&broker).await.len(), tasks);
        assert_sound(&broker).await;
        submit(&broker, vec![spec("another")]).await.unwrap();
        assert_eq!(stored(&broker).await.len(), tasks + 1);
    }
}

/// What was accepted stands in the log, whatever has become of the file.
#[tokio::test]
async fn a_log_that_is_there_is_not_laid_over_it() {
    let (_folder, path) = place();
    let broker = open(&path).await;
    submit(&broker, vec![spec("accepted")]).await.unwrap();
    let log = fs::read(with_suffix(&path, "-wal")).unwrap();
    drop(broker);
    for suffix in ["", "-shm", "-new"] {
        fs::remove_file(with_suffix(&path, suffix)).unwrap();
    }
    fs::write(with_suffix(&path, "-wal"), log).unwrap();
    fs::write(&path, "").unwrap();
    let broker = Sqlite::open_here(&path).await.unwrap();
    broker.submit_own(own(spec("second"))).await.unwrap();
    assert!(!with_suffix(&path, "-first").exists(), "it would tell that there is nothing to keep");
    assert_eq!(stored(&broker).await.len(), 2);
    assert_sound(&broker).await;
}

/// Others may write to a database before the one who made it does again.
#[tokio::test]
async fn what_others_wrote_meanwhile_is_synced_as_ever() {
    let (_folder, path) = place();
    let broker = Sqlite::open_here(&path).await.unwrap();
    let claim = broker.submit_own(own(spec("first"))).await.unwrap().claim.unwrap();
    broker.sync().await.unwrap();
    let other = open(&path).await;
    submit(&other, (0..3000).map(|n| spec(&format!("task-{n}"))).collect()).await.unwrap();
    broker.finish(vec![success(claim.fence)]).await.unwrap();
    assert_eq!(stored(&other).await.len(), 3001);
    assert_sound(&other).await;
}

/// What was moved into the database without a sync would be in neither after a power cut.
#[tokio::test]
async fn the_log_of_a_first_commit_stays() {
    let (_folder, path) = place();
    let broker = Sqlite::open_here(&path).await.unwrap();
    let many = (0..1000).map(|n| Spec::command(["echo".to_owned(), "x".repeat(3000), n.to_string()])).collect();
    submit(&broker, many).await.unwrap();
    let before = fs::read(&path).unwrap();
    drop(broker);
    assert!(fs::read(&path).unwrap() == before, "nothing was moved into the database");
    assert!(fs::metadata(with_suffix(&path, "-wal")).unwrap().len() > 3_000_000);
    let other = open(&path).await;
    assert_eq!(stored(&other).await.len(), 1000);
}
