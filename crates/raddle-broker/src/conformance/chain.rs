//! Tasks that follow an attempt: submitted with its success, and never there without.

use std::time::Duration;

use raddle_model::{
    ControlCommand, ControlMessage, ExitStatus, HumanDuration, TaskEventKind, TaskSpec, TaskState,
    TaskView, Tid, spec::ReservedPolicy,
};

use super::{Fixture, Handle, support::*};
use crate::{
    AttemptId, AttemptStarted, ChainRequest, ClaimRequest, CompletionOutcome, Error, NewTask,
    Result, SubmitAndClaim, SummaryDetail, TaskFilter,
    chain::{MAX_CHAINED, MAX_CHAINED_BYTES},
};

/// Chains tasks by their names, as a command does.
async fn chain(broker: &Handle, attempt_id: AttemptId, names: &[&str]) -> Result<u64> {
    chain_specs(
        broker,
        attempt_id,
        names.iter().map(|name| spec(name)).collect(),
    )
    .await
}

async fn chain_specs(broker: &Handle, attempt_id: AttemptId, tasks: Vec<TaskSpec>) -> Result<u64> {
    broker
        .chain(ChainRequest {
            attempt_id,
            tasks,
            offset: None,
        })
        .await
}

/// A task whose attempt runs.
async fn running(broker: &Handle, spec: TaskSpec) -> Result<AttemptId> {
    let owner = worker(broker).await?;
    submit(broker, spec).await?;
    begin(broker, owner).await
}

/// Returns the tasks that a task has submitted, oldest first.
async fn children(broker: &Handle, parent: Tid) -> Result<Vec<TaskView>> {
    let mut tasks = broker.tasks(TaskFilter::default()).await?;
    tasks.retain(|task| task.parent == Some(parent));
    tasks.reverse();
    Ok(tasks)
}

async fn children_names(broker: &Handle, parent: Tid) -> Result<Vec<String>> {
    Ok(children(broker, parent)
        .await?
        .iter()
        .map(|task| task.spec.display_name().to_owned())
        .collect())
}

/// In order, ready to be claimed, and below the task that chained them.
pub async fn submits_chained_tasks_after_success(store: &dyn Fixture) -> Result<()> {
    let (broker, other) = (store.broker(), store.reopen().await);
    let attempt_id = running(broker, spec("parent")).await?;
    assert_eq!(chain(broker, attempt_id, &["a", "b"]).await?, 2);
    assert_eq!(
        chain(&other, attempt_id, &["c"]).await?,
        3,
        "from another process of the attempt"
    );
    assert_eq!(
        end(broker, attempt_id, success()).await?,
        CompletionOutcome::Finished(TaskState::Completed)
    );
    assert_eq!(
        children_names(broker, attempt_id.tid).await?,
        ["a", "b", "c"]
    );
    let owner = worker(&other).await?;
    let names = claim_names(
        &other,
        ClaimRequest {
            max: 9,
            ..request(owner)
        },
    )
    .await?;
    assert_eq!(names, ["a", "b", "c"]);
    let task = view(broker, attempt_id.tid).await?;
    assert_eq!((task.state, task.chained), (TaskState::Completed, 0));
    Ok(())
}

/// Not in any count, list, line or log, and no id is spent on them.
pub async fn hides_chained_tasks_before_the_end(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let attempt_id = running(broker, spec("parent")).await?;
    let all = SummaryDetail {
        finished: true,
        kinds: true,
        messages: true,
        ..SummaryDetail::default()
    };
    let summary = broker.summarize(all.clone()).await?;
    let events = broker.events(Some(0), None, 1000, AT_ONCE).await?;
    let delayed = TaskSpec {
        delay: Some(HumanDuration::secs(60)),
        ..spec("later")
    };
    assert_eq!(
        chain_specs(broker, attempt_id, vec![spec("now"), delayed]).await?,
        2
    );
    assert_eq!(
        view(broker, attempt_id.tid).await?.chained,
        2,
        "their number is known"
    );
    assert_eq!(broker.tasks(TaskFilter::default()).await?[0].chained, 2);
    assert_eq!(broker.summarize(all).await?, summary);
    assert_eq!(broker.events(Some(0), None, 1000, AT_ONCE).await?, events);
    assert_eq!(broker.tasks(TaskFilter::default()).await?.len(), 1);
    let owner = worker(broker).await?;
    assert!(claim(broker, owner, 9).await?.is_empty());
    broker.purge().await?;
    end(broker, attempt_id, success()).await?;
    assert_eq!(
        children_names(broker, attempt_id.tid).await?,
        ["now", "later"]
    );
    Ok(())
}

/// They are submitted then, and so stand behind what was submitted before, and are news to who
/// reads the log.
pub async fn they_are_as_old_as_the_end(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let attempt_id = running(broker, spec("parent")).await?;
    chain(broker, attempt_id, &["follow-up"]).await?;
    let between = submit(broker, spec("between")).await?;
    let seen = broker
        .events(Some(0), None, 1000, AT_ONCE)
        .await?
        .last()
        .expect("there are events")
        .id;
    end(broker, attempt_id, success()).await?;
    let follow_up = children(broker, attempt_id.tid).await?[0].tid;
    assert!(follow_up > between);
    let news = broker
        .events(Some(seen.as_u64()), None, 1000, AT_ONCE)
        .await?;
    let news: Vec<_> = news.iter().map(|event| (event.tid, event.event)).collect();
    assert_eq!(
        news,
        [
            (attempt_id.tid, TaskEventKind::Completed),
            (follow_up, TaskEventKind::Created)
        ]
    );
    let owner = worker(broker).await?;
    assert_eq!(
        claim_names(
            broker,
            ClaimRequest {
                max: 9,
                ..request(owner)
            }
        )
        .await?,
        ["between", "follow-up"]
    );
    Ok(())
}

/// Whichever way it ends, and nothing of it is left for the next attempt.
pub async fn any_other_end_leaves_nothing(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    for exit in [
        failure(),
        ExitStatus::Timeout,
        ExitStatus::Cancelled,
        ExitStatus::Killed,
        ExitStatus::WorkerLost {
            message: "gone".into(),
        },
    ] {
        let attempt_id = running(broker, spec("parent")).await?;
        chain(broker, attempt_id, &["never"]).await?;
        let outcome = end(broker, attempt_id, exit.clone()).await?;
        assert_ne!(outcome, CompletionOutcome::Finished(TaskState::Completed));
        assert_eq!(
            view(broker, attempt_id.tid).await?.chained,
            0,
            "after {exit}"
        );
        assert!(
            children(broker, attempt_id.tid).await?.is_empty(),
            "after {exit}"
        );
        if matches!(outcome, CompletionOutcome::Retry(_)) {
            broker
                .control(attempt_id.tid, ControlMessage::new(ControlCommand::Kill))
                .await?;
        }
    }
    assert_eq!(broker.summary().await?.ready.values().sum::<u64>(), 0);
    Ok(())
}

/// Chained tasks of failed attempts are dropped.
pub async fn only_the_attempt_that_succeeds_is_followed(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let first = running(broker, retrying(3, HumanDuration::default())).await?;
    let owner = view(broker, first.tid)
        .await?
        .worker
        .expect("it is claimed");
    chain(broker, first, &["first"]).await?;
    assert!(matches!(
        end(broker, first, failure()).await?,
        CompletionOutcome::Retry(_)
    ));
    let second = begin(broker, owner).await?;
    assert_eq!(view(broker, first.tid).await?.chained, 0);
    chain(broker, second, &["second"]).await?;
    release(broker, second).await?;
    let third = begin(broker, owner).await?;
    assert_eq!(chain(broker, third, &["third"]).await?, 1);
    end(broker, third, success()).await?;
    assert_eq!(children_names(broker, first.tid).await?, ["third"]);
    Ok(())
}

/// A worker that dies, one that leaves, and a pause that outlives its attempt.
pub async fn drops_chained_tasks_of_a_lost_worker(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = mortal(broker).await?;
    let tid = submit(broker, spec("parent")).await?;
    let lost = begin(broker, owner).await?;
    chain(broker, lost, &["lost"]).await?;
    outlive(broker, owner).await?;
    assert_eq!(broker.reclaim().await?.len(), 1);
    assert_eq!(view(broker, tid).await?.chained, 0);

    let leaving = worker(broker).await?;
    let unbegun = take(broker, leaving).await?;
    chain(broker, unbegun, &["unbegun"]).await?;
    broker.deregister(leaving, None).await?;

    let owner = worker(broker).await?;
    let paused = begin(broker, owner).await?;
    chain(broker, paused, &["paused"]).await?;
    broker.mark_paused(paused, true).await?;
    assert_eq!(
        view(broker, tid).await?.chained,
        1,
        "a pause takes nothing away"
    );
    release(broker, paused).await?;
    broker
        .control(tid, ControlMessage::new(ControlCommand::Resume))
        .await?;

    let last = begin(broker, owner).await?;
    assert_eq!(view(broker, tid).await?.chained, 0);
    end(broker, last, success()).await?;
    assert!(children(broker, tid).await?.is_empty());
    Ok(())
}

/// Refused, counted and logged, and the latest attempt goes on undisturbed.
pub async fn a_late_attempt_chains_nothing(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let first = running(broker, spec("parent")).await?;
    let owner = view(broker, first.tid)
        .await?
        .worker
        .expect("it is claimed");
    release(broker, first).await?;
    let refused = |outcome: Result<u64>, attempt: u32| {
        assert!(
            matches!(outcome, Err(Error::Superseded(attempt_id)) if attempt_id.tid == first.tid && attempt_id.attempt == attempt),
            "{outcome:?}"
        );
    };
    refused(chain(broker, first, &["between attempts"]).await, 1);
    let second = begin(broker, owner).await?;
    refused(chain(broker, first, &["late"]).await, 1);
    assert_eq!(broker.summary().await?.stale_writes, 2);
    let last = broker
        .events(Some(0), Some(first.tid), 100, AT_ONCE)
        .await?
        .pop()
        .expect("there are events");
    assert_eq!((last.event, last.attempt), (TaskEventKind::StaleWrite, 1));
    assert_eq!(view(broker, first.tid).await?.chained, 0);
    chain(broker, second, &["in time"]).await?;
    end(broker, second, success()).await?;
    refused(chain(broker, second, &["after the end"]).await, 2);
    assert_eq!(broker.summary().await?.stale_writes, 3);
    assert_eq!(children_names(broker, first.tid).await?, ["in time"]);
    Ok(())
}

/// An unknown task, a finished task and the task of a worker cannot chain.
pub async fn refuses_to_chain_without_a_current_attempt(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let unknown = Tid::from_u64(1_500_000_000_000_000_000).expect("in the range of ids");
    let outcome = chain(
        broker,
        AttemptId {
            tid: unknown,
            attempt: 1,
            owner: unknown,
        },
        &["x"],
    )
    .await;
    assert!(
        matches!(outcome, Err(Error::NotFound(tid)) if tid == unknown),
        "{outcome:?}"
    );
    assert_eq!(broker.summary().await?.stale_writes, 0);
    let owner = worker(broker).await?;
    let outcome = chain(
        broker,
        AttemptId {
            tid: owner,
            attempt: 1,
            owner,
        },
        &["x"],
    )
    .await;
    assert!(
        matches!(outcome, Err(Error::Superseded { .. })),
        "{outcome:?}"
    );
    Ok(())
}

/// All or none, with the key that is wrong.
pub async fn one_invalid_task_refuses_all_of_its_call(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let attempt_id = running(broker, spec("parent")).await?;
    chain(broker, attempt_id, &["good"]).await?;
    let mut bad = spec("bad");
    bad.limits.memory_mb = Some(0);
    let outcome = chain_specs(broker, attempt_id, vec![spec("beside"), bad]).await;
    assert!(
        matches!(&outcome, Err(Error::Invalid(invalid)) if invalid.path == "limits.memory_mb"),
        "{outcome:?}"
    );
    assert_eq!(view(broker, attempt_id.tid).await?.chained, 1);
    end(broker, attempt_id, success()).await?;
    assert_eq!(children_names(broker, attempt_id.tid).await?, ["good"]);
    Ok(())
}

/// The limits are a number and a size. A call above them is refused, and earlier calls stay.
pub async fn an_attempt_chains_so_much_and_no_more(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let attempt_id = running(broker, spec("parent")).await?;
    let large = |share: u64| TaskSpec {
        stdin: Some("x".repeat((MAX_CHAINED_BYTES / share) as usize)),
        ..spec("large")
    };
    chain_specs(broker, attempt_id, vec![large(3)]).await?;
    chain_specs(broker, attempt_id, vec![large(3)]).await?;
    let outcome = chain_specs(broker, attempt_id, vec![large(3)]).await;
    assert!(
        matches!(outcome, Err(Error::ChainFull { .. })),
        "{outcome:?}"
    );
    let outcome = chain_specs(
        broker,
        attempt_id,
        vec![spec("small"); MAX_CHAINED as usize],
    )
    .await;
    assert!(
        matches!(outcome, Err(Error::ChainFull { .. })),
        "{outcome:?}"
    );
    assert_eq!(chain(broker, attempt_id, &["small"]).await?, 3);
    end(broker, attempt_id, success()).await?;
    assert_eq!(
        children_names(broker, attempt_id.tid).await?,
        ["large", "large", "small"]
    );
    Ok(())
}

/// As many as may be, from several calls; each once, each with its own id, and all can be claimed.
pub async fn a_thousand_follow_at_once(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let attempt_id = running(broker, spec("parent")).await?;
    for hundred in 0..10 {
        let tasks = (0..100)
            .map(|n| spec(&format!("{hundred}{n:02}")))
            .collect();
        assert_eq!(
            chain_specs(broker, attempt_id, tasks).await?,
            100 * (hundred + 1)
        );
    }
    end(broker, attempt_id, success()).await?;
    assert_eq!(broker.summary().await?.ready["default"], 1000);
    let owner = worker(broker).await?;
    let names = claim_names(
        broker,
        ClaimRequest {
            max: 2000,
            ..request(owner)
        },
    )
    .await?;
    assert_eq!(
        names,
        (0..1000).map(|n| format!("{n:03}")).collect::<Vec<_>>()
    );
    Ok(())
}

/// Delay, time, priority, queue and needs hold from then on.
pub async fn honours_the_specs_of_chained_tasks(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let attempt_id = running(broker, spec("parent")).await?;
    let soon = jiff::Timestamp::now() + Duration::from_secs(3600);
    let tasks = vec![
        spec("plain"),
        TaskSpec {
            delay: Some(HumanDuration::secs(60)),
            ..spec("delayed")
        },
        TaskSpec {
            priority: 9,
            ..spec("urgent")
        },
        TaskSpec {
            run_at: Some(soon),
            ..spec("timed")
        },
        spec("plain too"),
        TaskSpec {
            queue: "elsewhere".into(),
            ..spec("queued")
        },
        TaskSpec {
            requires: caps("gpu"),
            ..spec("needy")
        },
        TaskSpec {
            run_at: Some(jiff::Timestamp::UNIX_EPOCH),
            ..spec("overdue")
        },
    ];
    chain_specs(broker, attempt_id, tasks).await?;
    let before = jiff::Timestamp::now();
    end(broker, attempt_id, success()).await?;
    let by_name = |tasks: &[TaskView], name: &str| {
        tasks
            .iter()
            .find(|task| task.spec.display_name() == name)
            .cloned()
            .expect("it was chained")
    };
    let tasks = children(broker, attempt_id.tid).await?;
    assert_eq!(tasks.len(), 8);
    assert_eq!(by_name(&tasks, "timed").run_at, Some(soon));
    let delayed = by_name(&tasks, "delayed")
        .run_at
        .expect("its time has not come");
    assert!(
        delayed >= before + Duration::from_secs(59),
        "a delay begins with the end of the attempt"
    );
    let summary = broker.summary().await?;
    assert_eq!(
        (
            summary.delayed,
            summary.ready["default"],
            summary.ready["elsewhere"]
        ),
        (2, 5, 1)
    );
    let owner = worker(broker).await?;
    let names = claim_names(
        broker,
        ClaimRequest {
            max: 9,
            ..request(owner)
        },
    )
    .await?;
    assert_eq!(names, ["urgent", "plain", "plain too", "overdue"]);
    let able = ClaimRequest {
        caps: caps("gpu"),
        queues: vec!["default".into(), "elsewhere".into()],
        ..request(owner)
    };
    let mut names = claim_names(broker, ClaimRequest { max: 9, ..able }).await?;
    names.sort();
    assert_eq!(names, ["needy", "queued"]);
    Ok(())
}

/// A delayed one is given when it is due, by who waits already.
pub async fn a_delayed_one_is_given_when_it_is_due(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let attempt_id = running(broker, spec("parent")).await?;
    chain_specs(
        broker,
        attempt_id,
        vec![TaskSpec {
            delay: Some(HumanDuration::millis(300)),
            ..spec("delayed")
        }],
    )
    .await?;
    let owner = worker(broker).await?;
    let (waiting, ended) = tokio::join!(take(broker, owner), async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        end(broker, attempt_id, success()).await
    });
    ended?;
    assert_eq!(waiting?.tid, children(broker, attempt_id.tid).await?[0].tid);
    Ok(())
}

/// Its time begins when it is submitted.
pub async fn one_that_has_waited_for_too_long_expires(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let attempt_id = running(broker, spec("parent")).await?;
    let brief = TaskSpec {
        lifetime: Some(HumanDuration::millis(50)),
        ..spec("brief")
    };
    chain_specs(broker, attempt_id, vec![brief, spec("patient")]).await?;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(
        broker.due_items(AT_ONCE).await?.expired,
        0,
        "no worker waits yet"
    );
    end(broker, attempt_id, success()).await?;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(broker.due_items(AT_ONCE).await?.expired, 1);
    let owner = worker(broker).await?;
    assert_eq!(
        claim_names(
            broker,
            ClaimRequest {
                max: 9,
                ..request(owner)
            }
        )
        .await?,
        ["patient"]
    );
    Ok(())
}

/// As with any other submission.
pub async fn chained_tasks_wake_waiting_workers(store: &dyn Fixture) -> Result<()> {
    let (broker, other) = (store.broker(), store.reopen().await);
    let attempt_id = running(broker, spec("parent")).await?;
    let owner = other.register(info("waiting"), TTL).await?;
    // The queue is new, so its partition is new to all workers.
    chain_specs(
        broker,
        attempt_id,
        vec![TaskSpec {
            queue: "new".into(),
            ..spec("follow-up")
        }],
    )
    .await?;
    let request = ClaimRequest {
        queues: vec!["new".into()],
        wait: SOON,
        ..request(owner)
    };
    let waiting = tokio::spawn(async move { other.claim(request).await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    let began = std::time::Instant::now();
    end(broker, attempt_id, success()).await?;
    let claims = waiting.await.expect("a claim does not panic")?;
    assert_eq!(claims[0].spec.display_name(), "follow-up");
    assert!(
        began.elapsed() < Duration::from_millis(1500),
        "it was woken, and did not look by itself"
    );
    Ok(())
}

/// The key is looked at when they are submitted, as with any other: who has it stands for them.
pub async fn a_key_that_is_taken_then_is_respected(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let keyed = |name: &str, key: &str| TaskSpec {
        unique_key: Some(key.into()),
        ..spec(name)
    };
    let attempt_id = running(broker, spec("parent")).await?;
    let tasks = vec![
        keyed("a", "k"),
        keyed("a again", "k"),
        keyed("b", "taken"),
        spec("plain"),
    ];
    chain_specs(broker, attempt_id, tasks).await?;
    // No task holds the key yet: the first that is submitted gets it.
    submit(broker, keyed("other", "taken")).await?;
    end(broker, attempt_id, success()).await?;
    assert_eq!(
        children_names(broker, attempt_id.tid).await?,
        ["a", "plain"]
    );
    let holder = children(broker, attempt_id.tid).await?[0].tid;
    let stored = broker
        .submit(vec![NewTask::new(keyed("late", "k"))])
        .await?;
    assert_eq!(stored[0], crate::Submitted::Existing(holder));
    Ok(())
}

/// Its own key is free by then. So a task can go on for ever, and is there once.
pub async fn a_task_may_follow_itself(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let looping = TaskSpec {
        unique_key: Some("loop".into()),
        ..spec("loop")
    };
    let owner = worker(broker).await?;
    let mut last = submit(broker, looping.clone()).await?;
    for _ in 0..3 {
        let attempt_id = begin(broker, owner).await?;
        assert_eq!(
            attempt_id,
            AttemptId {
                tid: last,
                attempt: 1,
                owner
            }
        );
        chain_specs(broker, attempt_id, vec![looping.clone()]).await?;
        end(broker, attempt_id, success()).await?;
        last = children(broker, attempt_id.tid).await?[0].tid;
    }
    assert_eq!(
        submit(broker, looping).await?,
        last,
        "the last one has the key"
    );
    Ok(())
}

/// Each with its own, in the order of the batch.
pub async fn a_batch_ends_with_and_without(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    submit_all(
        broker,
        vec![
            spec("a"),
            spec("b"),
            retrying(2, HumanDuration::default()),
            spec("d"),
            spec("e"),
        ],
    )
    .await?;
    let fences: Vec<_> = claim(broker, owner, 5)
        .await?
        .iter()
        .map(|claim| claim.attempt_id)
        .collect();
    // Of the last it is not known that it has begun.
    broker
        .mark_started(
            fences[..4]
                .iter()
                .map(|attempt_id| AttemptStarted {
                    attempt_id: *attempt_id,
                    pid: None,
                })
                .collect(),
        )
        .await?;
    chain(broker, fences[1], &["b1", "b2"]).await?;
    chain(broker, fences[2], &["never"]).await?;
    chain(broker, fences[3], &["d1"]).await?;
    chain(broker, fences[4], &["e1"]).await?;
    let mut batch: Vec<_> = fences
        .iter()
        .map(|attempt_id| completion(*attempt_id, success()))
        .collect();
    batch[2] = completion(fences[2], failure());
    batch[3].stdout = b"said".to_vec();
    batch[3].report.stdout_bytes = 4;
    // A second end of the same attempt comes too late.
    batch.push(completion(fences[1], success()));
    let verdicts = broker.complete(batch).await?;
    let done = CompletionOutcome::Finished(TaskState::Completed);
    assert_eq!(
        [verdicts[0], verdicts[1], verdicts[3], verdicts[4]],
        [done; 4]
    );
    assert!(matches!(verdicts[2], CompletionOutcome::Retry(_)));
    assert_eq!(verdicts[5], CompletionOutcome::Stale);
    for (attempt_id, names) in fences
        .iter()
        .zip([&[][..], &["b1", "b2"], &[], &["d1"], &["e1"]])
    {
        assert_eq!(children_names(broker, attempt_id.tid).await?, names);
    }
    let said = broker
        .read_output(
            fences[3].tid,
            fences[3].attempt,
            crate::OutputStream::Stdout,
            0,
            100,
        )
        .await?;
    assert_eq!(said, b"said");
    assert_eq!(
        kinds(broker, fences[4].tid).await?[2..],
        [TaskEventKind::Running, TaskEventKind::Completed]
    );
    let names = claim_names(
        broker,
        ClaimRequest {
            max: 9,
            ..request(owner)
        },
    )
    .await?;
    assert_eq!(
        names,
        ["retrying", "b1", "b2", "d1", "e1"],
        "the older ones first"
    );
    Ok(())
}

/// A worker that does not know whether it was heard says it again.
pub async fn chains_a_repeated_call_once(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let attempt_id = running(broker, spec("parent")).await?;
    let say = |offset: u64, names: &[&str]| {
        let tasks = names.iter().map(|name| spec(name)).collect();
        broker.chain(ChainRequest {
            attempt_id,
            tasks,
            offset: Some(offset),
        })
    };
    assert_eq!(say(0, &["a", "b"]).await?, 2);
    assert_eq!(chain(broker, attempt_id, &["own"]).await?, 3);
    assert_eq!(say(0, &["a", "b"]).await?, 3);
    assert_eq!(say(1, &["b", "c"]).await?, 4);
    let outcome = say(7, &["z"]).await;
    assert!(
        matches!(outcome, Err(Error::ChainLost { .. })),
        "{outcome:?}"
    );
    end(broker, attempt_id, success()).await?;
    assert_eq!(
        children_names(broker, attempt_id.tid).await?,
        ["a", "b", "own", "c"]
    );
    Ok(())
}

/// Several processes of one attempt at once.
pub async fn concurrent_chaining_loses_no_task(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let attempt_id = running(broker, spec("parent")).await?;
    let mut hands = tokio::task::JoinSet::new();
    for hand in 0..8 {
        let broker = if hand % 2 == 0 {
            broker.clone()
        } else {
            store.reopen().await
        };
        hands.spawn(async move {
            for n in 0..10 {
                chain(&broker, attempt_id, &[&format!("{hand}.{n}")]).await?;
            }
            Ok::<(), Error>(())
        });
    }
    while let Some(outcome) = hands.join_next().await {
        outcome.expect("a hand does not panic")?;
    }
    end(broker, attempt_id, success()).await?;
    let mut names = children_names(broker, attempt_id.tid).await?;
    names.sort();
    assert_eq!(
        names,
        (0..80)
            .map(|n| format!("{}.{}", n / 10, n % 10))
            .collect::<Vec<_>>()
    );
    Ok(())
}

/// A chain call and the end of its attempt: either it came in time, or it is offset that it did
/// not.
pub async fn reports_whether_a_racing_chain_call_succeeded(store: &dyn Fixture) -> Result<()> {
    let (broker, other) = (store.broker(), store.reopen().await);
    for _ in 0..20 {
        let attempt_id = running(broker, spec("parent")).await?;
        chain(broker, attempt_id, &["before"]).await?;
        let (chained, ended) = tokio::join!(
            chain(&other, attempt_id, &["racing"]),
            end(broker, attempt_id, success())
        );
        assert_eq!(ended?, CompletionOutcome::Finished(TaskState::Completed));
        let expected: &[&str] = match chained {
            Ok(2) => &["before", "racing"],
            Err(Error::Superseded { .. }) => &["before"],
            other => panic!("{other:?}"),
        };
        assert_eq!(children_names(broker, attempt_id.tid).await?, expected);
    }
    Ok(())
}

/// Also one that runs where it was submitted, and whose worker leaves with it.
pub async fn chains_from_a_task_claimed_with_its_submission(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let task = NewTask::new(TaskSpec {
        on_stop: ReservedPolicy::Requeue,
        ..spec("own")
    });
    let own = broker
        .submit_and_claim(SubmitAndClaim {
            task,
            worker: info("own"),
            lease: TTL,
        })
        .await?;
    let attempt_id = own.claim.expect("it is claimed at once").attempt_id;
    chain(broker, attempt_id, &["follow-up"]).await?;
    end(broker, attempt_id, success()).await?;
    assert!(broker.workers().await?.is_empty());
    assert_eq!(children_names(broker, attempt_id.tid).await?, ["follow-up"]);
    Ok(())
}
