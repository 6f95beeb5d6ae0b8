//! Several processes on one file, some of which are killed.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    time::{Duration, Instant},
};

use raddle_broker::{AttemptId, CompletionOutcome, Log, Queries, Tasks};
use raddle_model::{TaskEventKind, TaskState, Tid};

use crate::{
    helper::{GROUP, Other, now},
    support::*,
};

#[tokio::test]
async fn two_processes_make_one_database() {
    let directory = tempfile::tempdir().unwrap();
    for round in 0..20 {
        let path = directory.path().join(format!("round-{round}/broker.db"));
        let mut others = [Other::start("open", &path), Other::start("open", &path)];
        others
            .iter_mut()
            .for_each(|other| assert_eq!(other.hear().unwrap(), ["here"]));
        others.iter_mut().for_each(Other::go);
        let told: BTreeSet<Tid> = others
            .iter_mut()
            .map(|other| other.hear().unwrap()[1].parse().unwrap())
            .collect();
        let there: BTreeSet<Tid> = stored(&open(&path).await)
            .await
            .into_iter()
            .map(|(tid, _)| tid)
            .collect();
        assert_eq!(there, told);
        assert_eq!(there.len(), 2, "round {round}");
        let drafts = fs::read_dir(path.parent().unwrap()).unwrap();
        let drafts: Vec<_> = drafts.map(|found| found.unwrap().file_name()).collect();
        assert!(
            drafts
                .iter()
                .all(|name| !name.to_string_lossy().contains("-new")),
            "{drafts:?}"
        );
    }
}

/// From before it has begun to after it is done.
#[tokio::test]
async fn a_process_killed_while_it_makes_a_database_leaves_no_obstacle() {
    let directory = tempfile::tempdir().unwrap();
    for round in 0..20u64 {
        let path = directory.path().join(format!("round-{round}/broker.db"));
        let mut other = Other::start("open", &path);
        other.hear().unwrap();
        other.go();
        std::thread::sleep(Duration::from_micros(round * 400));
        other.kill();
        let broker = open(&path).await;
        submit(&broker, vec![spec("task")]).await.unwrap();
        assert_sound(&broker).await;
    }
}

#[tokio::test]
async fn handles_of_one_process_make_one_database() {
    let directory = tempfile::tempdir().unwrap();
    for round in 0..20 {
        let path = directory.path().join(format!("round-{round}/broker.db"));
        let mut opening = tokio::task::JoinSet::new();
        for _ in 0..4 {
            let path = path.clone();
            opening.spawn(async move {
                submit(&open(&path).await, vec![spec("task")])
                    .await
                    .unwrap()
            });
        }
        let told: BTreeSet<Tid> = opening.join_all().await.into_iter().flatten().collect();
        let there: BTreeSet<Tid> = stored(&open(&path).await)
            .await
            .into_iter()
            .map(|(tid, _)| tid)
            .collect();
        assert_eq!((there.len(), &there), (4, &told));
    }
}

/// All or none of each group, and all of each that was accepted.
#[tokio::test]
async fn a_killed_submitter_leaves_whole_groups() {
    let (_directory, path) = place();
    let mut accepted: BTreeSet<Tid> = BTreeSet::new();
    for round in 0..15u64 {
        let mut other = Other::start("submit", &path);
        let mut told = vec![other.hear().unwrap()];
        // From right after an answer to well into what follows it.
        std::thread::sleep(Duration::from_micros(round * 1700));
        told.extend(other.kill());
        // The last line may have been cut short by the kill; whole groups count as told.
        let whole = told.iter().filter(|line| line.len() == GROUP);
        accepted.extend(whole.flatten().filter_map(|tid| tid.parse::<Tid>().ok()));
    }
    let broker = open(&path).await;
    let there = stored(&broker).await;
    let ids: BTreeSet<Tid> = there.iter().map(|(tid, _)| *tid).collect();
    assert!(
        accepted.is_subset(&ids),
        "{} accepted tasks are lost",
        accepted.difference(&ids).count()
    );
    let mut groups: BTreeMap<&str, usize> = BTreeMap::new();
    there
        .iter()
        .for_each(|(_, name)| *groups.entry(name).or_default() += 1);
    assert!(groups.values().all(|size| *size == GROUP), "{groups:?}");
    assert!(groups.len() >= 15);
    assert_eq!(
        broker.summary().await.unwrap().ready["default"],
        ids.len() as u64
    );
    assert_sound(&broker).await;
}

/// Taken back after the lease, once, however many look.
#[tokio::test]
async fn a_killed_worker_loses_its_task_once() {
    let (_directory, path) = place();
    let (broker, second) = (open(&path).await, open(&path).await);
    let tid = submit(&broker, vec![spec("task")]).await.unwrap()[0];
    let mut other = Other::start("claim", &path);
    let claimed = other.hear().unwrap();
    assert_eq!(
        (claimed[0].as_str(), &claimed[2]),
        ("claimed", &tid.to_string())
    );
    let owner: Tid = claimed[1].parse().unwrap();
    other.kill();
    let killed = Instant::now();
    assert_eq!(
        broker.task(tid).await.unwrap().unwrap().state,
        TaskState::Running,
        "its lease still holds"
    );
    let taken = until("taking back", async || {
        let (a, b) = tokio::join!(broker.reclaim(), second.reclaim());
        Some([a.unwrap(), b.unwrap()].concat()).filter(|taken| !taken.is_empty())
    })
    .await;
    assert!(
        killed.elapsed() < Duration::from_secs(5),
        "{:?}",
        killed.elapsed()
    );
    assert_eq!(taken.len(), 1);
    let lost = AttemptId {
        tid,
        attempt: 1,
        owner,
    };
    assert_eq!(taken[0].attempt_id, lost);
    let next = worker(&second, TTL).await;
    let attempt_id = second.claim(request(next, SOON)).await.unwrap()[0].attempt_id;
    assert_eq!(
        attempt_id,
        AttemptId {
            tid,
            attempt: 2,
            owner: next
        }
    );
    assert_eq!(
        broker.complete(vec![success(lost)]).await.unwrap(),
        [CompletionOutcome::Stale]
    );
    assert_eq!(
        broker.complete(vec![success(attempt_id)]).await.unwrap(),
        [CompletionOutcome::Finished(TaskState::Completed)]
    );
    let events = broker
        .events(Some(0), Some(tid), 100, Duration::ZERO)
        .await
        .unwrap();
    let count = |kind| events.iter().filter(|event| event.event == kind).count();
    assert_eq!(
        (
            count(TaskEventKind::Reclaimed),
            count(TaskEventKind::StaleWrite),
            count(TaskEventKind::Completed)
        ),
        (1, 1, 1)
    );
    assert_eq!(
        broker.task(owner).await.unwrap().unwrap().state,
        TaskState::Failed
    );
}

/// Best of a few rounds: a busy machine may be slow once, a lost wake-up is slow every time.
#[tokio::test]
async fn a_submission_wakes_a_claim_in_another_process() {
    let (_directory, path) = place();
    let broker = open(&path).await;
    let mut other = Other::start("wait", &path);
    let mut took = Vec::new();
    for _ in 0..5 {
        assert_eq!(other.hear().unwrap(), ["waiting"]);
        tokio::time::sleep(Duration::from_millis(60)).await;
        let tid = submit(&broker, vec![spec("task")]).await.unwrap()[0];
        let submitted = now();
        let got = other.hear().unwrap();
        assert_eq!((got[0].as_str(), &got[1]), ("got", &tid.to_string()));
        took.push(Duration::from_nanos(
            got[2].parse::<u64>().unwrap().saturating_sub(submitted),
        ));
    }
    let best = took.iter().min().unwrap();
    assert!(*best < Duration::from_millis(200), "{took:?}");
}

/// A process that is stopped while others work does not hold them up, unless it holds the lock; a killed one never does.
#[tokio::test]
async fn a_killed_writer_leaves_no_lock() {
    let (_directory, path) = place();
    let broker = open(&path).await;
    for round in 0..10u64 {
        let mut other = Other::start("submit", &path);
        other.hear().unwrap();
        std::thread::sleep(Duration::from_micros(round * 900));
        other.kill();
        let began = Instant::now();
        submit(&broker, vec![spec("mine")]).await.unwrap();
        assert!(
            began.elapsed() < Duration::from_secs(3),
            "{:?}",
            began.elapsed()
        );
    }
    assert_sound(&broker).await;
}
