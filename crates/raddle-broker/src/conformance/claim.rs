//! Tasks out.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use raddle_model::{
    ControlCommand, ControlMessage, HumanDuration, Target, TaskEventKind, TaskSpec, TaskState, Tid,
};

use super::{Fixture, support::*};
use crate::{AttemptStarted, ClaimRequest, Error, Result, WaitingRequest};

/// An empty queue gives nothing, and not before the time is over.
pub async fn nothing_to_claim_takes_the_whole_wait(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    let (began, wait) = (Instant::now(), Duration::from_millis(80));
    assert!(
        broker
            .claim(ClaimRequest {
                wait,
                ..request(owner)
            })
            .await?
            .is_empty()
    );
    assert!(began.elapsed() >= wait);
    Ok(())
}

/// The attempt has a number, an owner and an event.
pub async fn a_claim_begins_an_attempt(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    let tid = submit(broker, spec("task")).await?;
    let claims = claim(broker, owner, 5).await?;
    assert_eq!(claims.len(), 1);
    assert_eq!(
        (claims[0].attempt_id.tid, claims[0].attempt_id.attempt),
        (tid, 1)
    );
    assert_eq!(claims[0].spec, spec("task"));
    let task = view(broker, tid).await?;
    assert_eq!(
        (task.state, task.attempt, task.worker),
        (TaskState::Spawning, 1, Some(owner))
    );
    assert!(task.claimed_at.is_some());
    let events = broker
        .events(Some(tid.as_u64()), Some(tid), 10, AT_ONCE)
        .await?;
    assert_eq!(events.len(), 1);
    assert_eq!(
        (events[0].event, events[0].attempt, events[0].worker),
        (TaskEventKind::Spawning, 1, Some(owner))
    );
    assert!(
        claim(broker, owner, 5).await?.is_empty(),
        "a claimed task is not claimed again"
    );
    Ok(())
}

/// Priority first, then age.
pub async fn the_urgent_come_first_and_then_the_oldest(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    let given = [("a", 5), ("b", 0), ("c", 9), ("d", 5), ("e", 9)];
    submit_all(
        broker,
        given
            .map(|(name, priority)| TaskSpec {
                priority,
                ..spec(name)
            })
            .to_vec(),
    )
    .await?;
    let mut names = Vec::new();
    for _ in given {
        names.extend(claim_names(broker, request(owner)).await?);
    }
    assert_eq!(names, ["c", "e", "a", "d", "b"]);
    Ok(())
}

/// One order over all that a worker may take.
pub async fn order_holds_over_partitions(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    let given = [
        ("a", "x", "", 5),
        ("b", "y", "gpu", 7),
        ("c", "x", "cpu", 7),
        ("d", "y", "", 5),
        ("e", "x", "gpu", 1),
    ];
    for (name, queue, requires, priority) in given {
        submit(
            broker,
            TaskSpec {
                queue: queue.into(),
                requires: caps(requires),
                priority,
                ..spec(name)
            },
        )
        .await?;
    }
    let all = ClaimRequest {
        caps: caps("cpu,gpu"),
        queues: vec!["y".into(), "x".into()],
        max: 4,
        ..request(owner)
    };
    assert_eq!(
        claim_names(broker, all.clone()).await?,
        ["b", "c", "a", "d"]
    );
    assert_eq!(claim_names(broker, all).await?, ["e"]);
    Ok(())
}

/// Up to `max`.
pub async fn several_are_taken_at_once(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    let tids = submit_all(broker, vec![spec("task"); 5]).await?;
    let claims = claim(broker, owner, 3).await?;
    assert_eq!(
        claims
            .iter()
            .map(|claim| claim.attempt_id.tid)
            .collect::<Vec<_>>(),
        tids[..3]
    );
    assert_eq!(claim(broker, owner, 3).await?.len(), 2);
    Ok(())
}

/// Cancelled, held and asked for: those around them keep their places, and are counted.
pub async fn a_batch_may_lose_tasks_from_its_middle(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    let tids = submit_all(broker, vec![spec("task"); 9]).await?;
    let waiting = async || -> Result<(u64, u64)> {
        let ready = broker.summary().await?.ready.values().sum();
        Ok((
            ready,
            broker
                .count_waiting(WaitingRequest::ahead_of(&view(broker, tids[8]).await?))
                .await?,
        ))
    };
    assert_eq!(waiting().await?, (9, 8));
    broker
        .control(tids[3], ControlMessage::new(ControlCommand::Stop))
        .await?;
    assert_eq!(waiting().await?, (8, 7));
    broker
        .control(tids[0], ControlMessage::new(ControlCommand::Pause))
        .await?;
    broker
        .control(tids[5], ControlMessage::new(ControlCommand::Pause))
        .await?;
    let only = ClaimRequest {
        only: Some(tids[4]),
        ..request(owner)
    };
    assert_eq!(broker.claim(only).await?[0].attempt_id.tid, tids[4]);
    assert_eq!(waiting().await?, (5, 4));
    broker
        .control(tids[5], ControlMessage::new(ControlCommand::Resume))
        .await?;
    assert_eq!(waiting().await?, (6, 5));
    let taken = async |max| -> Result<Vec<Tid>> {
        Ok(claim(broker, owner, max)
            .await?
            .iter()
            .map(|claim| claim.attempt_id.tid)
            .collect())
    };
    assert_eq!(taken(1).await?, [tids[1]]);
    assert_eq!(taken(3).await?, [tids[2], tids[5], tids[6]]);
    assert_eq!(waiting().await?, (2, 1));
    assert_eq!(taken(9).await?, [tids[7], tids[8]]);
    assert!(broker.summary().await?.ready.is_empty());
    Ok(())
}

/// A worker gets nothing from queues it does not serve.
pub async fn claims_only_from_served_queues(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    submit(
        broker,
        TaskSpec {
            queue: "mail".into(),
            ..spec("letter")
        },
    )
    .await?;
    assert!(claim(broker, owner, 1).await?.is_empty());
    let mail = ClaimRequest {
        queues: vec!["other".into(), "mail".into()],
        ..request(owner)
    };
    assert_eq!(claim_names(broker, mail).await?, ["letter"]);
    Ok(())
}

/// Requires must be a subset of what is offered.
pub async fn claims_only_tasks_whose_needs_are_offered(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    submit(
        broker,
        TaskSpec {
            requires: caps("gpu,linux"),
            ..spec("picture")
        },
    )
    .await?;
    for offered in ["", "gpu", "linux,cpu"] {
        let some = ClaimRequest {
            caps: caps(offered),
            ..request(owner)
        };
        assert!(
            broker.claim(some).await?.is_empty(),
            "{offered} is not enough"
        );
    }
    let enough = ClaimRequest {
        caps: caps("cpu,gpu,linux"),
        ..request(owner)
    };
    assert_eq!(claim_names(broker, enough).await?, ["picture"]);
    Ok(())
}

/// Those behind it are given as if it were not there, and it stays where it is.
pub async fn a_task_without_a_fitting_worker_delays_no_other(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    let stuck = TaskSpec {
        requires: caps("quantum"),
        priority: 9,
        ..spec("stuck")
    };
    submit_all(broker, vec![stuck; 300]).await?;
    submit(broker, spec("free")).await?;
    assert_eq!(
        claim_names(
            broker,
            ClaimRequest {
                max: 10,
                ..request(owner)
            }
        )
        .await?,
        ["free"]
    );
    assert_eq!(broker.summary().await?.ready["default"], 300);
    Ok(())
}

/// However many stand in front.
pub async fn order_holds_behind_many_tasks_without_a_fitting_worker(
    store: &dyn Fixture,
) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    let needing = |name: &str, requires: &str| TaskSpec {
        requires: caps(requires),
        ..spec(name)
    };
    submit(broker, spec("0")).await?;
    submit_all(broker, vec![needing("unwanted", "gpu"); 400]).await?;
    let behind: Vec<TaskSpec> = (1..=30)
        .map(|n| needing(&n.to_string(), ["", "a", "b", "a,b", "gpu"][n % 5]))
        .collect();
    submit_all(broker, behind).await?;
    let want = |max| ClaimRequest {
        max,
        caps: caps("a,b"),
        ..request(owner)
    };
    let fitting: Vec<String> = (0..=30)
        .filter(|n| n % 5 != 4)
        .map(|n: u32| n.to_string())
        .collect();
    assert_eq!(claim_names(broker, want(1)).await?, fitting[..1]);
    assert_eq!(claim_names(broker, want(10)).await?, fitting[1..11]);
    assert_eq!(claim_names(broker, want(100)).await?, fitting[11..]);
    assert_eq!(claim_names(broker, want(100)).await?, [""; 0]);
    Ok(())
}

/// A worker for commands does not get routines.
pub async fn a_target_implies_needs(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    submit(broker, TaskSpec::new(Target::Routine("sum".into()))).await?;
    assert!(claim(broker, owner, 1).await?.is_empty());
    let able = ClaimRequest {
        caps: caps("@routine:sum"),
        ..request(owner)
    };
    assert_eq!(claim_names(broker, able).await?, ["sum"]);
    Ok(())
}

/// Whatever its queue and needs, and whatever is before it.
pub async fn one_task_can_be_asked_for(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    submit(
        broker,
        TaskSpec {
            priority: 9,
            ..spec("first")
        },
    )
    .await?;
    let odd = submit(
        broker,
        TaskSpec {
            queue: "odd".into(),
            requires: caps("gpu"),
            ..spec("odd")
        },
    )
    .await?;
    let only = ClaimRequest {
        only: Some(odd),
        max: 5,
        ..request(owner)
    };
    assert_eq!(claim_names(broker, only).await?, ["odd"]);
    Ok(())
}

/// Claimed, delayed, held, over or unknown.
pub async fn one_task_that_is_not_ready_is_not_given(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    let later = submit(
        broker,
        TaskSpec {
            delay: Some(HumanDuration::secs(60)),
            ..spec("later")
        },
    )
    .await?;
    let taken = submit(broker, spec("taken")).await?;
    let attempt_id = take(broker, owner).await?;
    let held = submit(broker, spec("held")).await?;
    broker
        .control(
            held,
            raddle_model::ControlMessage::new(raddle_model::ControlCommand::Pause),
        )
        .await?;
    for tid in [later, taken, held, owner] {
        let claims = broker
            .claim(ClaimRequest {
                only: Some(tid),
                ..request(owner)
            })
            .await?;
        assert!(claims.is_empty(), "{claims:?}");
    }
    end(broker, attempt_id, success()).await?;
    assert!(
        broker
            .claim(ClaimRequest {
                only: Some(taken),
                ..request(owner)
            })
            .await?
            .is_empty()
    );
    Ok(())
}

/// It is not claimed earlier, and no other call is needed.
pub async fn a_delayed_task_is_given_when_it_is_due(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    let began = Instant::now();
    let delay = HumanDuration::millis(250);
    let tid = submit(
        broker,
        TaskSpec {
            delay: Some(delay),
            ..spec("later")
        },
    )
    .await?;
    assert!(claim(broker, owner, 1).await?.is_empty());
    let task = view(broker, tid).await?;
    assert_eq!(task.state, TaskState::Created);
    assert!(
        task.run_at.is_some_and(|at| at > task.created_at),
        "{:?}",
        task.run_at
    );
    assert_eq!(broker.summary().await?.delayed, 1);
    assert_eq!(take(broker, owner).await?.tid, tid);
    assert!(began.elapsed() >= delay.0, "{:?}", began.elapsed());
    assert!(
        began.elapsed() < Duration::from_millis(1500),
        "the timer is exact: {:?}",
        began.elapsed()
    );
    assert_eq!(broker.summary().await?.delayed, 0);
    Ok(())
}

/// `run_at` may be past.
pub async fn a_time_in_the_past_is_now(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    let past = Timestamp::from_second(1_000_000_000).expect("within the calendar");
    submit(
        broker,
        TaskSpec {
            run_at: Some(past),
            ..spec("past")
        },
    )
    .await?;
    // Beyond what a number of nanoseconds holds, as the zero time of some languages is.
    let long_past: Timestamp = "0001-01-01T00:00:00Z".parse().expect("within the calendar");
    submit(
        broker,
        TaskSpec {
            run_at: Some(long_past),
            ..spec("long past")
        },
    )
    .await?;
    submit(
        broker,
        TaskSpec {
            run_at: Some(Timestamp::MIN),
            ..spec("first of all")
        },
    )
    .await?;
    submit(
        broker,
        TaskSpec {
            run_at: Some(Timestamp::MAX),
            ..spec("last of all")
        },
    )
    .await?;
    let later = Timestamp::now()
        .checked_add(Duration::from_secs(3600))
        .expect("within the calendar");
    let future = submit(
        broker,
        TaskSpec {
            run_at: Some(later),
            ..spec("future")
        },
    )
    .await?;
    assert_eq!(
        claim_names(
            broker,
            ClaimRequest {
                max: 5,
                ..request(owner)
            }
        )
        .await?,
        ["past", "long past", "first of all"]
    );
    assert_eq!(view(broker, future).await?.run_at, Some(later));
    Ok(())
}

/// Once it is due, it is as old as it is.
pub async fn a_task_that_becomes_due_keeps_its_place(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    let early = submit(
        broker,
        TaskSpec {
            delay: Some(HumanDuration::millis(50)),
            ..spec("early")
        },
    )
    .await?;
    let due = ClaimRequest {
        only: Some(early),
        wait: SOON,
        ..request(owner)
    };
    let attempt_id = broker.claim(due).await?[0].attempt_id;
    submit(broker, spec("late")).await?;
    release(broker, attempt_id).await?;
    assert_eq!(
        claim_names(
            broker,
            ClaimRequest {
                max: 2,
                ..request(owner)
            }
        )
        .await?,
        ["early", "late"]
    );
    Ok(())
}

/// Neither strangers nor tasks that are no workers.
pub async fn an_unregistered_worker_claims_nothing(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let task = submit(broker, spec("task")).await?;
    let refused = claim(broker, task, 1).await;
    assert!(
        matches!(refused, Err(Error::NotFound(tid)) if tid == task),
        "{refused:?}"
    );
    let gone = worker(broker).await?;
    broker.deregister(gone, None).await?;
    let refused = claim(broker, gone, 1).await;
    assert!(
        matches!(refused, Err(Error::NotFound(tid)) if tid == gone),
        "{refused:?}"
    );
    assert_eq!(view(broker, task).await?.state, TaskState::Created);
    Ok(())
}

/// Its runners have given up, so they would not run what it claims now.
pub async fn a_worker_with_an_expired_lease_claims_nothing(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = mortal(broker).await?;
    let task = submit(broker, spec("task")).await?;
    outlive(broker, owner).await?;
    let refused = claim(broker, owner, 1).await;
    assert!(
        matches!(refused, Err(Error::NotFound(tid)) if tid == owner),
        "{refused:?}"
    );
    assert_eq!(view(broker, task).await?.state, TaskState::Created);
    Ok(())
}

/// Later tasks go to other workers.
pub async fn a_claim_that_is_given_up_loses_nothing(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    let waiting = broker.claim(ClaimRequest {
        wait: SOON,
        ..request(owner)
    });
    assert!(
        tokio::time::timeout(Duration::from_millis(50), waiting)
            .await
            .is_err()
    );
    let tid = submit(broker, spec("task")).await?;
    let other = worker(broker).await?;
    assert_eq!(take(broker, other).await?.tid, tid);
    Ok(())
}

/// No clock overflows.
pub async fn a_wait_without_end_is_taken(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    let waiting = tokio::spawn({
        let broker = broker.clone();
        async move {
            broker
                .claim(ClaimRequest {
                    wait: Duration::MAX,
                    ..request(owner)
                })
                .await
        }
    });
    let tid = submit(broker, spec("task")).await?;
    let claims = waiting.await.expect("a long wait is no reason to panic")?;
    assert_eq!(claims[0].attempt_id.tid, tid);
    Ok(())
}

/// State, process and event.
pub async fn started_is_noted_once(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    let tid = submit(broker, spec("task")).await?;
    let attempt_id = begin(broker, owner).await?;
    broker
        .mark_started(vec![AttemptStarted {
            attempt_id,
            pid: Some(4711),
        }])
        .await?;
    let task = view(broker, tid).await?;
    assert_eq!(
        (task.state, task.pid, task.worker),
        (TaskState::Running, Some(4711), Some(owner))
    );
    assert_eq!(
        kinds(broker, tid).await?,
        [
            TaskEventKind::Created,
            TaskEventKind::Spawning,
            TaskEventKind::Running
        ]
    );
    Ok(())
}

/// It has nothing to say, and does not count as a write.
pub async fn started_by_a_late_attempt_is_passed_over(store: &dyn Fixture) -> Result<()> {
    let broker = store.broker();
    let owner = worker(broker).await?;
    let tid = submit(broker, spec("task")).await?;
    let late = take(broker, owner).await?;
    release(broker, late).await?;
    broker
        .mark_started(vec![AttemptStarted {
            attempt_id: late,
            pid: Some(1),
        }])
        .await?;
    assert_eq!(view(broker, tid).await?.state, TaskState::Created);
    take(broker, owner).await?;
    broker
        .mark_started(vec![AttemptStarted {
            attempt_id: late,
            pid: Some(1),
        }])
        .await?;
    assert_eq!(view(broker, tid).await?.state, TaskState::Spawning);
    assert!(!kinds(broker, tid).await?.contains(&TaskEventKind::Running));
    assert_eq!(broker.summary().await?.stale_writes, 0);
    Ok(())
}
