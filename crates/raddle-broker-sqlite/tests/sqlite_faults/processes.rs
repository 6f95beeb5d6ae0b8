//! Several processes on one database, some of which are killed.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    time::{Duration, Instant},
};

use raddle_broker::{
    AttemptId, ClaimRequest, CompletionOutcome, Log, Operations, Queries, TaskFilter, Tasks,
    conformance,
    operations::{NewOperation, OperationAction, OperationSelection, OperationState},
};
use raddle_model::{ExitStatus, TaskEventKind, TaskState, Tid};

use crate::{
    helper_process::{GROUP, HelperProcess, now},
    support::*,
};

#[tokio::test]
async fn two_processes_create_one_database() {
    let directory = tempfile::tempdir().unwrap();
    for round in 0..20 {
        let path = directory.path().join(format!("round-{round}/broker.db"));
        let mut helpers = [
            HelperProcess::start("open", &path),
            HelperProcess::start("open", &path),
        ];
        helpers
            .iter_mut()
            .for_each(|helper| assert_eq!(helper.next_line().unwrap(), ["here"]));
        helpers.iter_mut().for_each(HelperProcess::resume);
        let printed: BTreeSet<Tid> = helpers
            .iter_mut()
            .map(|helper| helper.next_line().unwrap()[1].parse().unwrap())
            .collect();
        let stored_tids: BTreeSet<Tid> = stored(&open(&path).await)
            .await
            .into_iter()
            .map(|(tid, _)| tid)
            .collect();
        assert_eq!(stored_tids, printed);
        assert_eq!(stored_tids.len(), 2, "round {round}");
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

/// Killed at times from before the creation to after it.
#[tokio::test]
async fn a_process_killed_while_creating_a_database_leaves_no_obstacle() {
    let directory = tempfile::tempdir().unwrap();
    for round in 0..20u64 {
        let path = directory.path().join(format!("round-{round}/broker.db"));
        let mut helper = HelperProcess::start("open", &path);
        helper.next_line().unwrap();
        helper.resume();
        std::thread::sleep(Duration::from_micros(round * 400));
        helper.kill();
        let broker = open(&path).await;
        submit(&broker, vec![spec("task")]).await.unwrap();
        assert_sound(&broker).await;
    }
}

#[tokio::test]
async fn handles_of_one_process_create_one_database() {
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
        let printed: BTreeSet<Tid> = opening.join_all().await.into_iter().flatten().collect();
        let stored_tids: BTreeSet<Tid> = stored(&open(&path).await)
            .await
            .into_iter()
            .map(|(tid, _)| tid)
            .collect();
        assert_eq!((stored_tids.len(), &stored_tids), (4, &printed));
    }
}

/// Every batch is stored whole or not at all, and all accepted batches are stored.
#[tokio::test]
async fn a_killed_submitter_leaves_whole_batches() {
    let (_directory, path) = temp_database();
    let mut accepted: BTreeSet<Tid> = BTreeSet::new();
    for round in 0..15u64 {
        let mut helper = HelperProcess::start("submit", &path);
        let mut printed = vec![helper.next_line().unwrap()];
        // From right after a reply to the middle of the next batch.
        std::thread::sleep(Duration::from_micros(round * 1700));
        printed.extend(helper.kill());
        // The last line may be incomplete; only whole batches count as accepted.
        let whole = printed.iter().filter(|line| line.len() == GROUP);
        accepted.extend(whole.flatten().filter_map(|tid| tid.parse::<Tid>().ok()));
    }
    let broker = open(&path).await;
    let stored_tids = stored(&broker).await;
    let ids: BTreeSet<Tid> = stored_tids.iter().map(|(tid, _)| *tid).collect();
    assert!(
        accepted.is_subset(&ids),
        "{} accepted tasks are lost",
        accepted.difference(&ids).count()
    );
    let mut groups: BTreeMap<&str, usize> = BTreeMap::new();
    stored_tids
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

/// Reclaimed once after the lease, by one of several brokers.
#[tokio::test]
async fn a_task_of_a_killed_worker_is_reclaimed_once() {
    let (_directory, path) = temp_database();
    let (broker, second) = (open(&path).await, open(&path).await);
    let tid = submit(&broker, vec![spec("task")]).await.unwrap()[0];
    let mut helper = HelperProcess::start("claim", &path);
    let claimed = helper.next_line().unwrap();
    assert_eq!(
        (claimed[0].as_str(), &claimed[2]),
        ("claimed", &tid.to_string())
    );
    let owner: Tid = claimed[1].parse().unwrap();
    helper.kill();
    let killed = Instant::now();
    assert_eq!(
        broker.task(tid).await.unwrap().unwrap().state,
        TaskState::Running,
        "its lease is still valid"
    );
    let reclaimed = wait_until("the task is reclaimed", async || {
        let (a, b) = tokio::join!(broker.reclaim(), second.reclaim());
        Some([a.unwrap(), b.unwrap()].concat()).filter(|reclaimed| !reclaimed.is_empty())
    })
    .await;
    assert!(
        killed.elapsed() < Duration::from_secs(5),
        "{:?}",
        killed.elapsed()
    );
    assert_eq!(reclaimed.len(), 1);
    let lost = AttemptId {
        tid,
        attempt: 1,
        owner,
    };
    assert_eq!(reclaimed[0].attempt_id, lost);
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

/// The best of a few rounds counts: a busy machine may be slow once, and a lost wake-up is slow
/// every time.
#[tokio::test]
async fn a_submission_wakes_a_claim_in_another_process() {
    let (_directory, path) = temp_database();
    let broker = open(&path).await;
    let mut helper = HelperProcess::start("wait", &path);
    let mut took = Vec::new();
    for _ in 0..5 {
        assert_eq!(helper.next_line().unwrap(), ["waiting"]);
        tokio::time::sleep(Duration::from_millis(60)).await;
        let tid = submit(&broker, vec![spec("task")]).await.unwrap()[0];
        let submitted = now();
        let got = helper.next_line().unwrap();
        assert_eq!((got[0].as_str(), &got[1]), ("got", &tid.to_string()));
        took.push(Duration::from_nanos(
            got[2].parse::<u64>().unwrap().saturating_sub(submitted),
        ));
    }
    let best = took.iter().min().unwrap();
    assert!(*best < Duration::from_millis(200), "{took:?}");
}

/// A stopped process blocks others only if it holds the lock; a killed one never does.
#[tokio::test]
async fn a_killed_writer_leaves_no_lock() {
    let (_directory, path) = temp_database();
    let broker = open(&path).await;
    for round in 0..10u64 {
        let mut helper = HelperProcess::start("submit", &path);
        helper.next_line().unwrap();
        std::thread::sleep(Duration::from_micros(round * 900));
        helper.kill();
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

/// Killed in the middle, several times, at any point of a step.
#[tokio::test]
async fn an_operation_survives_killed_processes_exactly() {
    const TASKS: usize = 1500;
    let (_directory, path) = temp_database();
    let broker = open(&path).await;
    let owner = worker(&broker, TTL).await;
    let tids = submit(&broker, vec![spec("dead"); TASKS]).await.unwrap();
    let everything = ClaimRequest {
        max: TASKS as u32,
        ..request(owner, SOON)
    };
    let claims = broker.claim(everything).await.unwrap();
    let ends = claims
        .iter()
        .map(|claim| conformance::completion(claim.attempt_id, ExitStatus::Code { code: 1 }));
    broker.complete(ends.collect()).await.unwrap();
    assert_eq!(broker.summary().await.unwrap().dead, TASKS as u64);
    let id = broker
        .start_operation(NewOperation {
            action: OperationAction::Retry,
            selection: OperationSelection::Query("dead:yes".parse().unwrap()),
            as_of: Tid::from_u64(broker.last_event().await.unwrap()).unwrap(),
            expected: Some(TASKS as u64),
            reason: String::new(),
            by: String::new(),
        })
        .await
        .unwrap();
    for steps in [1, 20, 50] {
        let mut helper = HelperProcess::start("advance", &path);
        for _ in 0..steps {
            helper.next_line().unwrap();
        }
        std::thread::sleep(Duration::from_micros(137 * steps));
        helper.kill();
    }
    let before = broker.operations(Some(id), 1).await.unwrap().remove(0);
    assert!(before.done > 0 && before.done < TASKS as u64, "{before:?}");
    let mut view = before;
    while view.state == OperationState::Running {
        view = broker.advance_operation(id, 1000).await.unwrap();
    }
    assert_eq!(
        (view.done, view.changed, view.refused),
        (TASKS as u64, 0, 0)
    );
    let retried: Vec<Tid> = broker
        .tasks(TaskFilter {
            states: vec![TaskState::Created],
            ..TaskFilter::default()
        })
        .await
        .unwrap()
        .iter()
        .map(|task| task.spec.metadata["retry_of"].as_str().unwrap())
        .map(|tid| tid.parse().unwrap())
        .collect();
    assert_eq!(retried.len(), TASKS);
    let once: BTreeSet<Tid> = retried.into_iter().collect();
    assert_eq!(once, tids.into_iter().collect(), "each was retried once");
    assert_eq!(broker.summary().await.unwrap().dead, 0);
    assert_sound(&broker).await;
}
